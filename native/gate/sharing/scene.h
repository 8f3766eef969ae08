/* What a client sees of the others when it asks, and whose turn it is. */
#ifndef ASTRARIUM_GATE_SHARING_SCENE_H
#define ASTRARIUM_GATE_SHARING_SCENE_H

#include "board/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What *client* sees at *now*. Latency clients of other processes are left out where it stops at their fences. What the
 * policy is to know of the latency client that runs is written into *knobs. */
gate_scene gate_board_look(const gate_board *board, int client, uint64_t now, gate_knobs *knobs);
/* Adds a best-effort client's work in flight. */
void gate_scene_add_in_flight(gate_scene *scene, const gate_client *client);
/* Whether no other best-effort client is before this one. */
int gate_board_my_turn(const gate_board *board, int client, uint64_t now);
void gate_board_pass_turn(gate_board *board, int client);

#ifdef __cplusplus
}
#endif
#endif
