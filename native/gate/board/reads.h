/* How the numbers of a board are read.
 *
 * A board is a file that several programs write: any of its bytes may be anything, at any time. So nothing bounds an
 * array, a loop or a wait before it went through one of these. A number that nobody could have set counts as its
 * default, not as the nearest that is allowed: a lease of 2^64 ns would else be a lease of an hour.
 */
#ifndef ASTRARIUM_GATE_READS_H
#define ASTRARIUM_GATE_READS_H

#include "board/atomics.h"
#include "board/layout.h"

enum { GATE_MOST_SMS = 1024, GATE_LEAST_CHUNK = 4096 };
static const uint64_t GATE_HOUR = 3600ull * 1000 * 1000 * 1000, GATE_MOST_CHUNK = 1ull << 40;
static const uint64_t GATE_LEAST_LEASE = 1000ull * 1000, GATE_DEFAULT_LEASE = 200ull * 1000 * 1000;
static const uint64_t GATE_DEFAULT_CHUNK = 2 << 20;
static const uint64_t GATE_MOST_PHASES = 1ull << 40;
#define GATE_MOST_SEARCH_LIMIT 100.0
static const gate_throttle GATE_FIRST_THROTTLE = {0.2, 0.0, 0};

static inline uint32_t gate_board_places(const gate_board *board) {
    uint32_t places = LOAD(board->places), most = GATE_CLIENTS;
    return places < most ? places : most;
}

static inline uint32_t gate_client_tracks(const gate_client *client) {
    uint32_t tracks = LOAD(client->tracks_used), most = GATE_TRACKS;
    return tracks < most ? tracks : most;
}

static inline int gate_client_lives(const gate_client *client) { return LOAD(client->state) == GATE_LIVE; }

static inline int gate_client_is(const gate_client *client, gate_class kind) {
    return gate_client_lives(client) && READ(client->kind) == (uint32_t)kind;
}

/* The GPU looks at one bit of it only. */
static inline int gate_client_open(const gate_client *client) { return LOAD(client->open) & 1; }

/* A duration in ns; 0 where it is not known, or none that a GPU could take. */
static inline uint64_t gate_duration(uint64_t ns) { return ns <= GATE_HOUR ? ns : 0; }

static inline uint64_t gate_client_alone(const gate_client *client) { return gate_duration(READ(client->alone)); }

static inline uint64_t gate_client_phases(const gate_client *client) {
    uint64_t phases = READ(client->phases);
    return phases < GATE_MOST_PHASES ? phases : 0;
}

/* Whether an instant is close to *now*. One that is to come was written while we looked, or is none. */
static inline int gate_within(uint64_t now, uint64_t at, uint64_t ns) { return (now > at ? now - at : at - now) < ns; }

static inline uint32_t gate_board_policy(const gate_board *board) {
    uint32_t policy = READ(board->knobs.policy), none = GATE_STREAMS;
    return policy < GATE_POLICIES ? policy : none;
}

static inline uint64_t gate_board_lease(const gate_board *board) {
    uint64_t lease = READ(board->lease);
    return lease >= GATE_LEAST_LEASE && lease <= GATE_HOUR ? lease : GATE_DEFAULT_LEASE;
}

static inline uint64_t gate_board_chunk(const gate_board *board) {
    uint64_t chunk = READ(board->chunk);
    return chunk >= GATE_LEAST_CHUNK && chunk <= GATE_MOST_CHUNK ? chunk : GATE_DEFAULT_CHUNK;
}

static inline uint32_t gate_board_partition(const gate_board *board) {
    uint32_t sms = READ(board->partition);
    return sms <= GATE_MOST_SMS ? sms : 0;
}

static inline uint64_t gate_board_long_kernel(const gate_board *board) {
    return gate_duration(READ(board->long_kernel));
}

static inline double gate_board_search_limit(const gate_board *board) {
    double limit = board->search_limit;
    return limit >= 0 && limit <= GATE_MOST_SEARCH_LIMIT ? limit : 0; /* 0 where it is no number, too */
}

/* What decides or waits by a knob must be able to go on. Whether the others are numbers at all does not matter: what
 * is compared with none of them goes. */
static inline void gate_check_knobs(gate_knobs *knobs) {
    if (knobs->policy >= GATE_POLICIES) knobs->policy = GATE_STREAMS;
    if (!knobs->depth) knobs->depth = GATE_DEFAULT_DEPTH;
    if (!knobs->latency || knobs->latency > GATE_HOUR) knobs->latency = GATE_DEFAULT_LATENCY;
    if (knobs->window > GATE_HOUR) knobs->window = 0;
}

/* The window alone, for who asks at every launch. */
static inline uint64_t gate_board_window(const gate_board *board) {
    return gate_window_for(gate_duration(READ(board->knobs.window)), gate_duration(READ(board->knobs.latency)));
}

#endif
