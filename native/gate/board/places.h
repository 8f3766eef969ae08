/* Who is on the board: places are taken, left, and taken back from the dead. */
#ifndef ASTRARIUM_GATE_BOARD_PLACES_H
#define ASTRARIUM_GATE_BOARD_PLACES_H

#include "board/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The place that this process takes; -1 where all are taken by living clients. */
int gate_board_join(gate_board *board, gate_class kind, const char *name);
void gate_board_leave(gate_board *board, int client);
/* Whether this place is (still) this process's: whoever finds nonsense in it takes it for a dead one's. */
int gate_board_keeps(const gate_board *board, int client);
/* Frees places of this very process, from before it became this program. */
void gate_board_vacate_own(gate_board *board);
/* Frees the places of processes that are no more; how many. */
int gate_board_sweep(gate_board *board);

#ifdef __cplusplus
}
#endif
#endif
