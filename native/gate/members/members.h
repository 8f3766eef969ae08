/* Who is who in this process: the process itself, or threads that were marked, as places on the board. */
#ifndef ASTRARIUM_GATE_MEMBERS_H
#define ASTRARIUM_GATE_MEMBERS_H

#include <pthread.h>

#include "board/layout.h"
#include "kernels/kernels.h"
#include "sharing/pacing.h"

/* A stream of a member, as this process knows it. */
typedef struct member_stream {
    uint64_t key; /* 0: free */
    CUstream handle;
    pthread_t owner; /* of a per-thread stream: in other threads its handle means another */
    int per_thread;
    gate_track *track;
    /* latency: the request that is open on it, and the one that is timed */
    int open, timed;
    uint64_t touched; /* its last launch */
    pthread_t opened_by;
    CUevent begin, end, after;
    kernel *graph; /* the timed request is a launch of it; NULL: eager */
    uint32_t launched_before, launches;
    /* best effort: expected ns since the GPU was last told to report, and since the last fence */
    uint64_t unmarked_ns, unfenced_ns, fences;
} member_stream;

typedef struct member {
    int place; /* on the board */
    gate_class kind;
    gate_client *client;
    pthread_mutex_t lock; /* of its streams and requests */
    member_stream streams[GATE_TRACKS];
    int streams_used;
    int requests_open;
    uint64_t alone; /* of eager requests */
    /* latency: where the GPU was last told to write the fence, and a stream of ours for that where there are
     * several to wait for */
    int closed;
    CUstream fence_on, fence_stream;
    int fence_told; /* there is such a stream */
    uint32_t fences_written;
    int company;     /* best effort: there was a latency client at the last fence */
    gate_pacing pacing; /* best effort beside throughput */
    uint64_t phases;
    uint64_t beat_at; /* then it says again what is on the board of it */
} member;

/* The board, joined at the first launch; NULL where there is none to join. */
gate_board *members_board(void);
/* Whose launch this is; NULL: nobody's, it passes. */
member *member_of(CUstream stream);
/* The same, but it leaves no trace. */
member *member_who(CUstream stream);
/* The calling thread's, or the process's. */
member *member_here(void);
member *member_at(int place);
/* The calling thread launches for a client of this class and name from now on; *kind* -1: for the process again. -1:
 * there is no place for it. */
int members_mark_thread(int kind, const char *name);
/* A stream is about to end: nobody is known by it any more. */
void members_forget_stream(CUstream stream);

/* Whether threads of this process were marked: it may hold clients of both classes. */
int members_mixed(void);
/* Every so often: what others may have written over this client's place is set right, and a client that has lost its
 * place leaves the gate. */
void member_beat(member *me, uint64_t now);
/* Lets all go that stop at fences on the GPU, where the board cannot be used any more. In a thread of ours. */
void members_open_fences(void);
/* Whether this process is ending, or its board is gone: nobody waits any more, and every launch passes. */
int members_leaving(void);

uint64_t members_now(void);
/* To within a few milliseconds, for next to nothing: good enough for signs of life. */
uint64_t members_about_now(void);

#endif
