/* Every launch of this process, in the thread that makes it: admitted, booked, and handed to the driver. */
#ifndef ASTRARIUM_GATE_ADMISSION_H
#define ASTRARIUM_GATE_ADMISSION_H

#include "admission/launch.h"

/* Returns what the driver returned. It may wait before. */
CUresult client_launch(launch *made);

/* What kind of client launches on this stream: gate_class; -1: none, or nothing is held because of a capture. */
int client_kind(CUstream stream);
/* Bytes of a best-effort copy at a time; 0: no board. */
uint64_t client_chunk(void);
/* gate_policy; -1: no board. */
int client_policy(void);

#endif
