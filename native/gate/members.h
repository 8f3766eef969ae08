/* Who is who in this process: the process itself, or threads that were marked, as places on the board. */
#ifndef ASTRARIUM_GATE_MEMBERS_H
#define ASTRARIUM_GATE_MEMBERS_H

#include <pthread.h>

#include "board.h"
#include "kernels.h"

typedef struct member {
    int place; /* on the board */
    gate_class kind;
    gate_client *client;
    /* the latency request that is open, and the one that is being timed */
    pthread_mutex_t lock;
    int open, timed;
    CUstream stream; /* the open request's */
    CUevent begin, end;
    kernel *graph;   /* the timed request is a launch of it; NULL: eager */
    uint64_t alone;  /* of eager requests */
    uint32_t launches, launched_before; /* of the request that is timed; up to it */
    int closed;      /* best effort is to stop at its fences */
    uint64_t unmarked_ns; /* best effort: expected, since the GPU was last told to report */
    uint64_t fences;      /* best effort: that were due */
    uint64_t unfenced_ns; /* best effort: expected, since the last fence */
} member;

/* The board, joined at the first launch; NULL where there is none to join. */
gate_board *members_board(void);
/* Whose launch this is; NULL: nobody's, it passes. */
member *member_of(CUstream stream);
/* The calling thread's, or the process's. */
member *member_here(void);
int members_mark_thread(int kind, const char *name);

/* Tells the GPU to report on the board when it has come this far. */
void members_mark(gate_track *track);
/* All streams of a client. */
void members_mark_all(const member *of);

/* What this stream has not reported, it reports now. */
void members_stream_ends(CUstream stream);

/* Whether the GPU can read and write the board. */
int members_on_gpu(void);
/* In *stream*: the GPU writes a latency client's fence, or waits before it. 0: it cannot. */
int members_write_fence(gate_client *client, CUstream stream, uint32_t open);
int members_await_fence(gate_client *client, CUstream stream);
/* Best effort beside throughput: the GPU waits until this client has earned another window. */
int members_await_pace(gate_client *client, CUstream stream);

/* Whether threads of this process were marked: it may hold clients of both classes. */
int members_mixed(void);

uint64_t members_now(void);
/* To within a few milliseconds, for next to nothing: good enough for signs of life. */
uint64_t members_about_now(void);

#endif
