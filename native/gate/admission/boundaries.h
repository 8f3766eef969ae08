/* Where requests, phases and streams end: at waits, at graphs, or where the program says so. */
#ifndef ASTRARIUM_GATE_BOUNDARIES_H
#define ASTRARIUM_GATE_BOUNDARIES_H

#include "driver/cuda_abi.h"

/* Around every call that waits for the GPU, the end of a latency request: for one stream, for what this thread
 * has launched, or for everything. */
void client_pauses_at(CUstream handle);
void client_pauses(int everything);
void client_waited(void);

void client_request_end(void);
void client_phase_end(void);

/* A stream is about to be destroyed. */
void client_stream_ends(CUstream handle);

#endif
