/* What lies on a board: a file in memory that the clients of one GPU share, with a place for each client.
 *
 * There is no server and no lock. Everybody writes his own place and reads the others'; the GPU itself writes
 * how far it has come (`completed`). Whoever dies leaves a place that the others recognize by its process id
 * and take back; nothing that he could have held stays held.
 *
 * The offsets are a format: programs of one version find each other by them (GATE_BOARD_VERSION). Whoever reads a
 * number of a board does so through reads.h, and a file that is cut short is noticed by guard.h.
 */
#ifndef ASTRARIUM_GATE_BOARD_LAYOUT_H
#define ASTRARIUM_GATE_BOARD_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "policy/decide.h"
#include "policy/learn.h"

enum {
    GATE_BOARD_VERSION = 2,
    GATE_CLIENTS = 32,
    GATE_TRACKS = 48,  /* streams of a client */
    GATE_TRAIL = 64,   /* launches in flight on a track whose durations are told apart */
    GATE_NAME = 48,
};

/* One stream of a client. Launches are numbered; the GPU writes the number of the last one that it has ended
 * into `completed`. */
typedef struct gate_track {
    uint32_t launched;  /* so many */
    uint32_t marked;    /* up to here the GPU has been told to report */
    uint64_t launched_ns;           /* expected duration of all launches */
    uint64_t trail[GATE_TRAIL];     /* launched_ns after each launch, by number */
    uint32_t completed __attribute__((aligned(64)));
    uint32_t pad[15];
} gate_track;

typedef struct gate_counts {
    uint64_t kernels, graphs, copies; /* launches seen */
    uint64_t captured;                /* besides: into graphs, which run them later */
    uint64_t held, held_ns;           /* launches that had to wait, and how long altogether */
    uint64_t beside;                  /* launches admitted beside latency work */
    uint64_t unknown;                 /* launches of kernels that were not measured yet */
    uint64_t requests;                /* completed */
    uint64_t busy_ns;                 /* latency: how long those took that were timed */
    uint64_t partitioned;             /* kernels sent to an SM partition */
    uint64_t fences;
    uint64_t ran;                     /* kernels and graphs that the driver says it ran; 0: not counted */
    uint64_t waits[GATE_VERDICTS];    /* launches held, by the first reason */
} gate_counts;

typedef struct gate_client {
    uint32_t state; /* gate_place; while it is taken, with the process that takes it */
    int32_t pid;
    uint64_t born; /* of the process, so that a pid used again is told apart */
    uint32_t kind; /* gate_class */
    char name[GATE_NAME];
    uint64_t touched;     /* last launch: latency work is believed in for so long (see `lease`) */
    uint32_t waiting;     /* 1 + gate_verdict while a launch is held, else 0 */
    uint32_t in_request;
    uint64_t phases;
    gate_work work;       /* its latest launch */
    uint64_t alone;       /* latency: how long the request that runs takes alone */
    uint64_t last;        /* latency: how long the last request took */
    uint64_t pace;        /* latency that wants throughput: ns for each launch, alone; 0: unknown */
    uint64_t beside[GATE_KINDS]; /* latency: best-effort work launched beside the request that runs */
    double harm[GATE_KINDS];     /* latency: what that costs it, as far as is learnt (see gate_knobs) */
    gate_counts counts;
    /* latency: 0 while best effort is to stop at its next fence; the GPU writes it too */
    uint32_t open __attribute__((aligned(64)));
    /* best effort beside throughput: it has passed so many fences, and may pass so many */
    uint32_t paces, permitted;
    uint32_t fences_passed; /* latency: what the GPU has written through the client's own stream */
    uint32_t pad[12];
    uint32_t can_fence; /* the GPU can reach the board for it; otherwise launches are held */
    uint32_t tracks_used;
    gate_track tracks[GATE_TRACKS];
} gate_client;

typedef enum gate_place { GATE_FREE, GATE_TAKEN, GATE_LIVE } gate_place;

typedef struct gate_board {
    uint32_t magic; /* written last */
    uint32_t version;
    uint64_t size;
    uint64_t processes; /* the name space in which process ids mean something */
    uint32_t changes; /* futex: somebody may have reason to look again */
    uint32_t sleepers; /* on it; one that died there only costs the others a needless call */
    uint32_t knobs_version; /* odd while knobs are written */
    gate_knobs knobs;
    gate_search search;
    double search_limit; /* 0: the SM threshold stays as it is */
    gate_throttle throttle; /* of best effort that stops at fences, where there is such a limit */
    uint64_t lease;      /* latency work without a sign of life for so long is taken to be over */
    uint32_t partition;  /* SMs that best-effort kernels too long to wait for may use; 0: all */
    uint64_t long_kernel; /* from this duration on they are too long; 0: four windows */
    uint32_t turn;       /* of the best-effort clients */
    uint32_t most_sms;   /* that a best-effort kernel needed */
    uint64_t chunk;      /* bytes of a best-effort copy at a time */
    uint32_t places;     /* that were ever taken: nobody need look beyond */
    gate_client clients[GATE_CLIENTS];
} gate_board;

#endif
