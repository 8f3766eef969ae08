/* A board's knobs, under a sequence lock: every launch reads them, hardly anybody writes them. */
#ifndef ASTRARIUM_GATE_BOARD_KNOBS_H
#define ASTRARIUM_GATE_BOARD_KNOBS_H

#include "board/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A copy that makes sense, also where a writer died in the middle. */
gate_knobs gate_board_knobs(const gate_board *board);
/* Writes them all, and wakes who waits. */
void gate_board_set_knobs(gate_board *board, const gate_knobs *knobs);
/* Whoever writes knobs is through in no time: a version that was *odd* at an earlier look already is that of one who
 * died, and costs every reader time. Returns it where it is odd, else 0. */
uint32_t gate_board_settle(gate_board *board, uint32_t odd);

#ifdef __cplusplus
}
#endif
#endif
