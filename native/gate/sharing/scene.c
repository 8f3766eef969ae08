#include "sharing/scene.h"

#include <string.h>

#include "board/atomics.h"
#include "board/reads.h"
#include "board/tracks.h"
#include "sharing/fences.h"
#include "sharing/liveliness.h"

static void see_latency(const gate_board *board, const gate_client *client, uint64_t now, gate_scene *scene,
                        gate_knobs *knobs) {
    scene->latency_waits |= LOAD(client->waiting) && gate_client_lively(board, client, now);
    if (!gate_client_at_work(board, client, now)) return;
    scene->latency_running = 1;
    scene->latency_work = client->work;
    uint64_t alone = gate_client_alone(client);
    if (alone) knobs->latency = alone;
    memcpy(knobs->harm, client->harm, sizeof knobs->harm);
    for (int kind = 0; kind < GATE_KINDS; kind++) {
        uint64_t beside = LOAD(client->beside[kind]);
        if (beside > scene->beside[kind]) scene->beside[kind] = beside;
    }
}

void gate_scene_add_in_flight(gate_scene *scene, const gate_client *client) {
    for (uint32_t index = 0, tracks = gate_client_tracks(client); index < tracks; index++) {
        scene->outstanding += gate_track_in_flight_ns(&client->tracks[index]);
        scene->outstanding_count += gate_track_in_flight(&client->tracks[index]);
    }
}

/* Whoever gives no sign of life keeps nobody waiting, neither in a request nor in a phase. */
static void see_other(const gate_client *client, uint64_t now, const gate_board *board, gate_scene *scene) {
    int busy = LOAD(client->in_request) || gate_client_running(client);
    int alive = gate_client_lively(board, client, now);
    uint64_t phases = alive ? gate_client_phases(client) : GATE_MOST_PHASES;
    scene->others = 1;
    scene->other_in_request |= busy && alive;
    if (phases > scene->other_phases) scene->other_phases = phases;
}

gate_scene gate_board_look(const gate_board *board, int client, uint64_t now, gate_knobs *knobs) {
    const gate_client *me = &board->clients[client];
    gate_scene scene = {.asks = me->kind, .in_request = me->in_request, .own_phases = gate_client_phases(me)};
    for (uint32_t index = 0, places = gate_board_places(board); index < places; index++) {
        const gate_client *other = &board->clients[index];
        if (!gate_client_lives(other)) continue;
        if (gate_board_fenced(board, client, other)) continue;
        if (other->kind == GATE_LATENCY) see_latency(board, other, now, &scene, knobs);
        if (other->kind == GATE_BEST_EFFORT && gate_client_lively(board, other, now))
            gate_scene_add_in_flight(&scene, other);
        if (other->kind != me->kind) see_other(other, now, board, &scene);
    }
    return scene;
}

/* It waits for nothing but that others end. Who waits for latency work to end, or was stopped, is in nobody's way. */
static int could_go(const gate_board *board, const gate_client *client, uint64_t now) {
    return LOAD(client->waiting) == 1 + GATE_WAIT_DRAIN && gate_client_lively(board, client, now);
}

int gate_board_my_turn(const gate_board *board, int client, uint64_t now) {
    uint32_t places = gate_board_places(board);
    uint32_t turn = places ? LOAD(board->turn) % places : 0;
    for (uint32_t step = 0; step < places; step++) {
        uint32_t index = (turn + step) % places;
        const gate_client *other = &board->clients[index];
        if ((int)index == client) return 1;
        if (gate_client_is(other, GATE_BEST_EFFORT) && could_go(board, other, now)) return 0;
    }
    return 1;
}

void gate_board_pass_turn(gate_board *board, int client) { STORE(board->turn, (uint32_t)client + 1); }
