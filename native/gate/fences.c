/* Fences of latency clients: who stops at them, who opens them for the dead, and time given out instead. */
#include "atomics.h"
#include "board.h"
#include "scene.h"

static const uint64_t RECENT = 20 * 1000 * 1000; /* ns: a client that wants throughput launches all the time */
static const uint64_t QUIET = 2000 * 1000 * 1000ull; /* ns */
enum { QUIET_EVERY = 8 };                             /* fences */

int gate_board_asked(const gate_board *board, int client, const gate_client *other, uint64_t now, uint64_t number) {
    int quiet = now > LOAD(other->touched) + QUIET;
    return gate_board_fenced(board, client, other) && (!quiet || number % QUIET_EVERY == 0);
}

/* Streams of one process may share a hardware queue, where latency work would wait behind the fence that it
 * is to open: between threads, launches are held instead. */
int gate_board_fenced(const gate_board *board, int client, const gate_client *other) {
    const gate_client *me = &board->clients[client];
    return gate_policy_fences(board->knobs.policy) && LOAD(other->state) == GATE_LIVE &&
           other->kind == GATE_LATENCY && other->pid != me->pid && LOAD(other->can_fence) && LOAD(me->can_fence);
}

int gate_board_holds(const gate_board *board) {
    for (uint32_t index = 0; index < LOAD(board->places); index++) {
        const gate_client *client = &board->clients[index];
        int latency = LOAD(client->state) == GATE_LIVE && client->kind == GATE_LATENCY;
        if (latency && !LOAD(client->can_fence)) return 1;
    }
    return 0;
}

int gate_board_paced(const gate_board *board) {
    return board->search_limit > 0 && gate_policy_fences(board->knobs.policy);
}

static int anybody_at_work(const gate_board *board, uint64_t now) {
    for (uint32_t index = 0; index < LOAD(board->places); index++) {
        const gate_client *client = &board->clients[index];
        int latency = LOAD(client->state) == GATE_LIVE && client->kind == GATE_LATENCY;
        if (latency && now < LOAD(client->touched) + RECENT) return 1;
    }
    return 0;
}

uint64_t gate_board_pace(gate_board *board, int client, uint64_t now, uint64_t elapsed, uint64_t credit) {
    gate_client *me = &board->clients[client];
    gate_knobs knobs = gate_board_knobs(board);
    uint64_t window = gate_window(&knobs);
    credit += (uint64_t)(board->throttle.duty * (double)elapsed);
    uint32_t paces = LOAD(me->paces), permitted = LOAD(me->permitted);
    if (!gate_board_paced(board) || !anybody_at_work(board, now)) permitted = paces;
    while (credit >= window && permitted != paces) permitted++, credit -= window;
    STORE(me->permitted, permitted);
    return credit < window ? credit : window; /* what was not used is not saved up */
}

void gate_board_watch(gate_board *board, uint64_t now) {
    gate_board_sweep(board);
    for (uint32_t index = 0; index < LOAD(board->places); index++) {
        gate_client *client = &board->clients[index];
        if (!LOAD(client->open) && !scene_lively(board, client, now)) STORE(client->open, 1);
    }
}
