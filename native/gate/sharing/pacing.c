#include "sharing/pacing.h"

#include "board/atomics.h"
#include "board/reads.h"

static const uint64_t RECENT = 20ull * 1000 * 1000; /* ns: a client that wants throughput launches all the time */

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
    return duty >= 0.0 && duty <= 1.0 ? duty : GATE_FIRST_THROTTLE.duty;
}

void gate_board_pace(gate_board *board, int client, uint64_t now, uint64_t elapsed, gate_pacing *pacing) {
    gate_client *me = &board->clients[client];
    uint64_t window = gate_board_window(board);
    uint32_t paces = LOAD(pacing->paces);
    pacing->credit += (uint64_t)(duty_of(board) * (double)elapsed);
    if (!gate_board_paced(board) || !anybody_at_work(board, now)) pacing->permitted = paces;
    while (pacing->credit >= window && pacing->permitted != paces) {
        pacing->permitted++;
        pacing->credit -= window;
    }
    STORE(me->paces, paces);
    STORE(me->permitted, pacing->permitted);
    if (pacing->credit > window) pacing->credit = window; /* what was not used is not saved up */
}
