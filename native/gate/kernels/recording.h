/* What this process launches, written as a kernel profile: the kernels, their durations, and an iteration's order. */
#ifndef ASTRARIUM_GATE_RECORDING_H
#define ASTRARIUM_GATE_RECORDING_H

#include "kernels/kernels.h"

/* From now on it is recorded, for a file at *path*. */
void recording_begin(const char *path);
/* Asks for the device's name while the driver still answers. */
void recording_meet_device(void);
int recording_is_on(void);
void recording_launched(const kernel *launched);
/* The program says that a phase has ended. */
void recording_phase(void);
/* What is known by now; also every so many launches, and at the end. */
void recording_write(void);
/* In a child process: what its parent records is not its own to write. */
void recording_forget(void);

#endif
