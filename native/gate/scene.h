/* What the files that read the board have in common. */
#ifndef ASTRARIUM_GATE_SCENE_H
#define ASTRARIUM_GATE_SCENE_H

#include "board.h"

/* A client that stopped in the middle, or never says when it has done, is believed for a while only. */
int scene_lively(const gate_board *board, const gate_client *client, uint64_t now);
int scene_latency_runs(const gate_board *board, const gate_client *client, uint64_t now);
/* Adds a client's work in flight. */
void scene_see_best_effort(const gate_client *client, gate_scene *scene);

#endif
