/* Streams on which marked threads launched: backward runs on them from threads that nobody marked. */
#ifndef ASTRARIUM_GATE_STREAM_OWNERS_H
#define ASTRARIUM_GATE_STREAM_OWNERS_H

#include "driver/cuda_abi.h"

/* *place* is that of the client whose marked thread launched on it. */
void stream_owners_remember(CUstream stream, int place);
/* The place that is remembered, or *otherwise*. */
int stream_owners_find(CUstream stream, int otherwise);
/* A stream is about to end, or a place is no thread's any more: they count as *instead* from now on. */
void stream_owners_forget_stream(CUstream stream, int instead);
void stream_owners_forget_place(int place, int instead);
/* In a child process. */
void stream_owners_forget_all(void);

#endif
