/* Kernel profiles that earlier runs have left, as text. The format is described in docs/device/gate.md, and written by
 * recording.h. */
#ifndef ASTRARIUM_GATE_PROFILE_H
#define ASTRARIUM_GATE_PROFILE_H

#include "kernels/kernel_shape.h"
#include "policy/decide.h"

/* Reads the profile at *path*, before the first launch; where it cannot, complains on standard error and goes on
 * without. */
void profile_read(const char *path);
/* Writes what the profile says of a kernel to *work*, and nothing where it says nothing. */
void profile_recall(const char *name, const kernel_shape *shape, gate_work *work);

#endif
