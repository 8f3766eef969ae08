#include "sharing/lessons.h"

#include <string.h>

#include "board/atomics.h"
#include "board/knobs.h"
#include "board/reads.h"
#include "sharing/liveliness.h"
#include "sharing/scene.h"

void gate_board_charge(gate_board *board, uint64_t now, uint32_t kind, uint64_t duration) {
    for (uint32_t index = 0, places = gate_board_places(board); index < places; index++) {
        gate_client *client = &board->clients[index];
        if (gate_client_is(client, GATE_LATENCY) && gate_client_at_work(board, client, now))
            ADD(client->beside[kind], duration);
    }
}

void gate_board_request_begins(gate_board *board, int client, uint64_t alone) {
    gate_client *me = &board->clients[client];
    gate_scene scene = {0};
    for (uint32_t index = 0, places = gate_board_places(board); index < places; index++)
        if (gate_client_is(&board->clients[index], GATE_BEST_EFFORT))
            gate_scene_add_in_flight(&scene, &board->clients[index]);
    for (int kind = 0; kind < GATE_KINDS; kind++) STORE(me->beside[kind], 0);
    STORE(me->beside[GATE_BEFORE], scene.outstanding);
    STORE(me->alone, alone);
}

/* By the launch: requests may be of different lengths. */
static void tune_duty(gate_board *board, gate_client *me, uint64_t duration, uint32_t launches) {
    double limit = gate_board_search_limit(board);
    gate_throttle throttle = board->throttle;
    uint64_t pace = gate_duration(me->pace);
    if (limit <= 0) return;
    gate_throttle_step(&throttle, &pace, limit, duration / (launches ? launches : 1));
    board->throttle = throttle;
    me->pace = pace;
}

static void tune_threshold(gate_board *board, gate_knobs *knobs, uint64_t duration) {
    double limit = gate_board_search_limit(board);
    gate_search search = board->search;
    if (limit <= 0 || !board->most_sms) return;
    if (search.high == 0) search.high = board->most_sms + 1;
    uint32_t threshold = knobs->sm_threshold ? knobs->sm_threshold : search.high;
    board->knobs.sm_threshold = gate_search_step(&search, threshold, knobs->latency, limit, duration);
    board->search = search;
}

/* Writes only what is learnt: somebody may be setting the other knobs. */
void gate_board_request_ended(gate_board *board, int client, uint64_t duration, uint32_t launches) {
    gate_client *me = &board->clients[client];
    gate_request request = {.duration = duration};
    memcpy(request.beside, me->beside, sizeof request.beside);
    gate_knobs knobs = gate_board_knobs(board);
    memcpy(knobs.harm, me->harm, sizeof knobs.harm);
    knobs.latency = gate_learn_alone(gate_client_alone(me), &request);
    gate_learn_harm(&knobs, &request);
    memcpy(me->harm, knobs.harm, sizeof me->harm);
    me->alone = knobs.latency;
    board->knobs.latency = knobs.latency;
    me->last = duration;
    me->counts.busy_ns += duration;
    tune_duty(board, me, duration, launches);
    tune_threshold(board, &knobs, duration);
}
