/* May this kernel be launched now? The kernel policies, as one pure function.
 *
 * The preloaded library asks it in the launching thread, the simulator asks it in virtual time: the same
 * code. Times are nanoseconds. Nothing here reads a clock or remembers anything: what is learnt is handed in
 * as knobs (see learn.h).
 */
#ifndef ASTRARIUM_GATE_DECIDE_H
#define ASTRARIUM_GATE_DECIDE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum gate_policy {
    GATE_STREAMS,          /* everybody at once, also across processes without MPS */
    GATE_STREAM_PRIORITY,  /* the same on streams of different priority */
    GATE_MPS,              /* the same in processes that share the GPU by MPS */
    GATE_TEMPORAL,         /* one request or iteration at a time */
    GATE_KERNEL_TEMPORAL,  /* best effort only while the GPU has no latency work */
    GATE_TICK_TOCK,        /* forward of one job beside backward of the other */
    GATE_REEF_N,
    GATE_ORION,
    GATE_ASTRARIUM,
    GATE_POLICIES
} gate_policy;

/* GATE_BEFORE is no kind of kernel: it stands for best-effort work that was in flight when a request came. */
typedef enum gate_kind { GATE_UNKNOWN, GATE_COMPUTE, GATE_MEMORY, GATE_COPY, GATE_BEFORE, GATE_KINDS } gate_kind;

typedef enum gate_class { GATE_LATENCY, GATE_BEST_EFFORT } gate_class;

/* What is known of a kernel, a graph or a copy before it is launched. */
typedef struct gate_work {
    uint64_t duration; /* 0: not known yet */
    uint32_t sms;      /* it fills so many SMs */
    uint32_t kind;     /* gate_kind */
} gate_work;

enum { GATE_DEFAULT_LATENCY = 1000 * 1000 /* ns */, GATE_DEFAULT_DEPTH = 12 };

typedef struct gate_knobs {
    uint32_t policy;
    uint32_t sms;               /* of the GPU */
    uint64_t latency;           /* of a latency request (or iteration) alone: learnt, or given */
    double duration_fraction;   /* orion: best effort in flight, as a share of that latency */
    uint32_t sm_threshold;      /* orion: best-effort kernels beside latency work need fewer SMs; 0: all SMs */
    uint32_t depth;             /* reef-n: best-effort kernels in flight */
    uint64_t window;            /* astrarium: best-effort work that a request may find before it; 0: by its latency */
    double allowance;           /* astrarium: by what share of its latency a request may be delayed */
    double harm[GATE_KINDS];    /* astrarium: delay for each ns that a kernel of a kind runs beside it */
} gate_knobs;

/* What a client sees of the others when it asks. */
typedef struct gate_scene {
    uint32_t asks;              /* gate_class of who asks */
    uint32_t others;            /* whether anybody of the other class is there at all, and not behind a fence */
    uint32_t latency_running;   /* latency work is on the GPU, or being launched */
    gate_work latency_work;     /* the latest of it */
    uint64_t outstanding;       /* ns of best-effort work that was launched and has not ended */
    uint32_t outstanding_count; /* kernels of it */
    uint64_t beside[GATE_KINDS]; /* ns of best-effort work launched beside the request that runs now */
    /* whole requests (temporal) */
    uint32_t in_request;        /* who asks is in the middle of one */
    uint32_t other_in_request;  /* one of the other class is */
    uint32_t latency_waits;     /* a latency request waits for its turn */
    /* phases of training (tick-tock): how many each side has completed */
    uint64_t own_phases, other_phases;
} gate_scene;

/* Everything but GATE_GO means: ask again when something has changed. */
typedef enum gate_verdict {
    GATE_GO,
    GATE_WAIT_LATENCY,  /* latency work runs, and this would hurt it */
    GATE_WAIT_DRAIN,    /* enough best-effort work is in flight */
    GATE_WAIT_UNKNOWN,  /* not measured yet: only while nobody can be hurt */
    GATE_WAIT_TURN,     /* the other side's request or phase */
    GATE_VERDICTS
} gate_verdict;

gate_verdict gate_decide(const gate_knobs *knobs, const gate_scene *scene, const gate_work *work);

/* Whether a policy also holds latency work, and whether it looks at work in flight at all. */
int gate_policy_holds_latency(uint32_t policy);
int gate_policy_tracks(uint32_t policy);

/* Fences. Holding launches back starves the GPU's queue: what a program could have launched meanwhile is
 * launched late. Under a policy with fences best-effort work is launched ahead, and the GPU itself stops before
 * a fence while latency work runs. Whether one is due before this work, *since* ns of it after the last. */
int gate_policy_fences(uint32_t policy);
int gate_fence_due(uint64_t window, uint64_t since, const gate_work *work);
uint64_t gate_window(const gate_knobs *knobs);
uint64_t gate_window_for(uint64_t given, uint64_t latency);

/* "orion" and so on; NULL and -1 where there is none. */
const char *gate_policy_name(uint32_t policy);
int gate_policy_number(const char *name);
const char *gate_verdict_name(uint32_t verdict);

/* The defaults of every policy for a GPU with *sms* SMs. */
gate_knobs gate_defaults(uint32_t policy, uint32_t sms);

#ifdef __cplusplus
}
#endif
#endif
