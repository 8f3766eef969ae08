#include "sharing/fences.h"

#include "board/atomics.h"
#include "board/places.h"
#include "board/reads.h"
#include "sharing/liveliness.h"

static const uint64_t QUIET = 2000ull * 1000 * 1000; /* ns */
enum { QUIET_EVERY = 8 };                             /* fences */

int gate_board_asked(const gate_board *board, int client, const gate_client *other, uint64_t now, uint64_t number) {
    int quiet = !gate_within(now, LOAD(other->touched), QUIET);
    return gate_board_fenced(board, client, other) && (!quiet || number % QUIET_EVERY == 0);
}

/* Streams of one process may share a hardware queue, where latency work would wait behind the fence that it
 * is to open: between threads, launches are held instead. */
int gate_board_fenced(const gate_board *board, int client, const gate_client *other) {
    const gate_client *me = &board->clients[client];
    return gate_policy_fences(gate_board_policy(board)) && gate_client_is(other, GATE_LATENCY) &&
           other->pid != me->pid && LOAD(other->can_fence) && LOAD(me->can_fence);
}

int gate_board_holds(const gate_board *board) {
    for (uint32_t index = 0, places = gate_board_places(board); index < places; index++) {
        const gate_client *client = &board->clients[index];
        if (gate_client_is(client, GATE_LATENCY) && !LOAD(client->can_fence)) return 1;
    }
    return 0;
}

/* Of every place, however few are said to be taken. */
void gate_board_watch(gate_board *board, uint64_t now) {
    gate_board_sweep(board);
    for (int index = 0; index < GATE_CLIENTS; index++) {
        gate_client *client = &board->clients[index];
        if (!gate_client_open(client) && !gate_client_lively(board, client, now)) STORE(client->open, 1);
    }
}
