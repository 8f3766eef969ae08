/* The clients in this process: who launches, what he waits for, and how the others learn what he does. */
#ifndef ASTRARIUM_GATE_CLIENT_H
#define ASTRARIUM_GATE_CLIENT_H

#include "board.h"
#include "kernels.h"

typedef enum launch_sort { LAUNCH_KERNEL, LAUNCH_GRAPH, LAUNCH_COPY } launch_sort;

/* A call that is on its way to the driver. `submit` makes it, on the stream it is told. */
typedef struct launch {
    CUresult (*submit)(const struct launch *, CUstream);
    CUstream stream;
    launch_sort sort;
    /* a kernel's shape, by which it is looked up where that matters */
    CUfunction function;
    const unsigned *grid, *block;
    unsigned shared;
    kernel *kernel; /* NULL: a copy, or one that there is no place for */
    gate_work work;
    int rigid;      /* must have the SMs that it asks for: not to be sent to a partition */
    const void *arguments;
} launch;

/* Admits a launch, in the caller's thread, and makes it. */
CUresult client_launch(launch *made);

/* Around every call that waits for the GPU, the end of a latency request: for one stream, for what this thread
 * has launched, or for everything. */
void client_pauses_at(CUstream stream);
void client_pauses(int everything);
void client_waited(void);

void client_request_end(void);
void client_phase_end(void);
int client_mark_thread(int kind, const char *name);

/* A stream is about to be destroyed. */
void client_stream_ends(CUstream stream);

/* While anything is captured nothing is held and nothing is reported. */
void client_capture(int change);
int client_capturing(void);
/* What kind of client the calling thread is; -1 none. */
int client_kind(CUstream stream);
uint64_t client_chunk(void);
int client_policy(void);

#endif
