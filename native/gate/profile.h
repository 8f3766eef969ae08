/* Kernel profiles as text: read at start, written at the end. The format is described in docs/device/gate.md. */
#ifndef ASTRARIUM_GATE_PROFILE_H
#define ASTRARIUM_GATE_PROFILE_H

#include "kernels.h"

/* Reads the profile at *path*; complains on standard error and goes on without where it cannot. */
void profile_read(const char *path);
/* What the profile says of a kernel, by name, grid, block and shared memory. */
void profile_recall(kernel *seen);

/* Recording: the order of launches, and the file at the end. */
void profile_record(const char *path);
void profile_meet_device(void);
int profile_recording(void);
void profile_launched(const kernel *launched);
void profile_phase(void);
void profile_write(void);
/* In a child process: what its parent records is not its own to write. */
void profile_forget(void);

#endif
