/* Sleeping until somebody changes the board (a futex on it), or for a fixed time. */
#ifndef ASTRARIUM_GATE_BOARD_WAITING_H
#define ASTRARIUM_GATE_BOARD_WAITING_H

#include "board/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Wakes all who wait: they may have reason to look again. */
void gate_board_changed(gate_board *board);
/* Returns when something has changed since *seen* (a value of board->changes), after *ns* at the latest, or early. */
void gate_board_wait(gate_board *board, uint32_t seen, uint64_t ns);
/* Looks at no board. */
void gate_nap(uint64_t ns);

#ifdef __cplusplus
}
#endif
#endif
