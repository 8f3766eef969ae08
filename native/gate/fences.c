/* Fences of latency clients: who stops at them, who opens them for the dead, and time given out instead. */
#include "atomics.h"
#include "board.h"
#include "reads.h"
#include "scene.h"

static const uint64_t RECENT = 20 * 1000 * 1000; /* ns: a client that wants throughput launches all the time */
static const uint64_t QUIET = 2000 * 1000 * 1000ull; /* ns */
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

int gate_board_paced(const gate_board *board) {
    return gate_board_search_limit(board) > 0 && gate_policy_fences(gate_board_policy(board));
}

static int anybody_at_work(const gate_board *board, uint64_t now) {
    for (uint32_t index = 0, places = gate_board_places(board); index < places; index++) {
        const gate_client *client = &board->clients[index];
        if (gate_client_is(client, GATE_LATENCY) && gate_within(now, LOAD(client->touched), RECENT)) return 1;
    }
    return 0;
}

/* What it is where the board says something else, or no number at all. */
static double duty_of(const gate_board *board) {
    double duty = board->throttle.duty;
    return duty >= 0.0 && duty <= 1.0 ? duty : gate_first_throttle.duty;
}

void gate_board_pace(gate_board *board, int client, uint64_t now, uint64_t elapsed, gate_pacing *pacing) {
    gate_client *me = &board->clients[client];
    uint64_t window = gate_board_window(board);
    uint32_t paces = LOAD(pacing->paces);
    pacing->credit += (uint64_t)(duty_of(board) * (double)elapsed);
    if (!gate_board_paced(board) || !anybody_at_work(board, now)) pacing->permitted = paces;
    while (pacing->credit >= window && pacing->permitted != paces) pacing->permitted++, pacing->credit -= window;
    STORE(me->paces, paces);
    STORE(me->permitted, pacing->permitted);
    if (pacing->credit > window) pacing->credit = window; /* what was not used is not saved up */
}

/* Of every place, however few are said to be taken. */
void gate_board_watch(gate_board *board, uint64_t now) {
    gate_board_sweep(board);
    for (int index = 0; index < GATE_CLIENTS; index++) {
        gate_client *client = &board->clients[index];
        if (!gate_client_open(client) && !scene_lively(board, client, now)) STORE(client->open, 1);
    }
}
