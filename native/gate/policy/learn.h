/* What is learnt from latency requests while they run: how long one takes alone, what best-effort work
 * beside it costs, and how large the best-effort kernels beside it may be. Pure, like decide.h.
 */
#ifndef ASTRARIUM_GATE_LEARN_H
#define ASTRARIUM_GATE_LEARN_H

#include "policy/decide.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A request that has ended: how long it ran, and the best-effort work launched beside it, by kind. */
typedef struct gate_request {
    uint64_t duration;
    uint64_t beside[GATE_KINDS];
} gate_request;

/* How long a request takes alone: follows down at once and up slowly, since others can only make it longer. */
uint64_t gate_learn_alone(uint64_t alone, const gate_request *request);

/* Moves knobs->harm towards what explains this request's delay (normalized least mean squares). */
void gate_learn_harm(gate_knobs *knobs, const gate_request *request);

/* Orion's binary search for SM_THRESHOLD, for latency clients that want throughput (training). */
typedef struct gate_search {
    uint32_t low, high; /* high: one more than the largest best-effort kernel needs, so that all fit below it */
    uint32_t requests;  /* since the threshold was changed */
    uint64_t total;     /* their durations */
} gate_search;

enum { GATE_SEARCH_EVERY = 10 }; /* requests between two steps */

/* *limit* is the share by which requests may be longer than alone. Returns the threshold to use from now on. */
uint32_t gate_search_step(gate_search *search, uint32_t threshold, uint64_t alone, double limit, uint64_t duration);

/* The share of the time that best effort may use beside a latency client that wants throughput and is always
 * busy: more while its requests are shorter than the limit allows, less while they are longer. Every so often it
 * is 0 for some requests, which show how long one takes alone: nothing else can, where there is no pause. */
typedef struct gate_throttle {
    double duty;
    double kept;       /* what it is again after such requests */
    uint32_t requests; /* since the last change of the limit */
} gate_throttle;

enum { GATE_PROBE_EVERY = 64, GATE_PROBES = 4 }; /* requests; the first one may bear what was launched before */

/* A request has ended. *pace* is how long one takes alone, of the client whose it was; 0: unknown. */
void gate_throttle_step(gate_throttle *throttle, uint64_t *pace, double limit, uint64_t duration);

#ifdef __cplusplus
}
#endif
#endif
