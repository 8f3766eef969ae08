/* What the clients of one GPU share: a file in memory with a place for each client.
 *
 * There is no server and no lock. Everybody writes his own place and reads the others'; the GPU itself writes
 * how far it has come (`completed`). Whoever dies leaves a place that the others recognize by its process id
 * and take back; nothing that he could have held stays held.
 */
#ifndef ASTRARIUM_GATE_BOARD_H
#define ASTRARIUM_GATE_BOARD_H

#include <stddef.h>
#include <stdint.h>

#include "decide.h"
#include "learn.h"

#ifdef __cplusplus
extern "C" {
#endif

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

extern const gate_throttle gate_first_throttle;

/* Opens the board at *path*, or makes it with the given policy. NULL with the reason in *why. Whoever reads a number
 * of it does so through reads.h, and a file that is cut short is noticed by guard.h. */
gate_board *gate_board_open(const char *path, uint32_t policy, uint32_t sms, const char **why);
void gate_board_close(gate_board *board);

gate_knobs gate_board_knobs(const gate_board *board);
void gate_board_set_knobs(gate_board *board, const gate_knobs *knobs);

/* Places. -1 where all are taken by living clients. */
int gate_board_join(gate_board *board, gate_class kind, const char *name);
void gate_board_leave(gate_board *board, int client);
/* Whether this place is (still) this process's: whoever finds nonsense in it takes it for a dead one's. */
int gate_board_keeps(const gate_board *board, int client);
/* Places of this very process, from before it became this program. */
void gate_board_vacate_own(gate_board *board);
/* Frees the places of processes that are no more; how many. */
int gate_board_sweep(gate_board *board);

/* Books of launches. */
gate_track *gate_track_take(gate_client *client, int index);
void gate_track_launch(gate_track *track, uint64_t expected_ns);
uint32_t gate_track_in_flight(const gate_track *track);
uint64_t gate_track_in_flight_ns(const gate_track *track);
int gate_client_running(const gate_client *client);

/* Whether there are latency clients whose fences nobody can stop at. */
int gate_board_holds(const gate_board *board);
/* What *client* sees at *now*. Latency clients of other processes are left out where it stops at their fences. */
gate_scene gate_board_look(const gate_board *board, int client, uint64_t now, gate_knobs *knobs);
/* Whether *client* must stop at this one's fence. */
int gate_board_fenced(const gate_board *board, int client, const gate_client *other);
/* Whether it must at its *number*th fence. One that has long been quiet is asked at few of them: every question
 * costs the GPU a microsecond, and at worst a first request finds some windows before it. */
int gate_board_asked(const gate_board *board, int client, const gate_client *other, uint64_t now, uint64_t number);
/* Whether no other best-effort client is before this one. */
int gate_board_my_turn(const gate_board *board, int client, uint64_t now);
void gate_board_pass_turn(gate_board *board, int client);
/* Best-effort work of a kind was launched: latency requests that run now bear it. */
void gate_board_charge(gate_board *board, uint64_t now, uint32_t kind, uint64_t duration);
/* A latency request begins: what is in flight now was there before it. */
void gate_board_request_begins(gate_board *board, int client, uint64_t alone);
/* It has ended after *duration*, in which so many kernels were launched. */
void gate_board_request_ended(gate_board *board, int client, uint64_t duration, uint32_t launches);

/* Whether best effort is paced by time, because its latency clients want throughput. */
int gate_board_paced(const gate_board *board);
/* What best effort beside throughput keeps to itself, and shows on the board: fences passed, those permitted, and ns
 * that were earned and not used. */
typedef struct gate_pacing {
    uint32_t paces, permitted;
    uint64_t credit;
} gate_pacing;
/* Permits *client* what it has earned in *elapsed* ns. */
void gate_board_pace(gate_board *board, int client, uint64_t now, uint64_t elapsed, gate_pacing *pacing);

/* Whoever writes knobs is through in no time: a version that was *odd* at an earlier look already is that of one who
 * died, and costs every reader time. Returns it where it is odd, else 0. */
uint32_t gate_board_settle(gate_board *board, uint32_t odd);
/* Opens the fences of latency clients that are dead or have given no sign of life for too long. */
void gate_board_watch(gate_board *board, uint64_t now);

void gate_board_changed(gate_board *board);
/* Until something changes, at most *ns*. */
void gate_board_wait(gate_board *board, uint32_t seen, uint64_t ns);

#ifdef __cplusplus
}
#endif
#endif
