/* Launches that have to wait, in the thread that makes them. */
#ifndef ASTRARIUM_GATE_HOLD_H
#define ASTRARIUM_GATE_HOLD_H

#include "members.h"

/* Returns when the policy lets this work go: whether it goes beside latency work. */
int hold_until_admitted(gate_board *board, member *of, const gate_work *work);
/* When the launch is in the books: who comes next is to see it there. */
void hold_ends(gate_board *board, const member *of);
/* For a moment, in a loop that looks at memory. */
void hold_relax(void);

#endif
