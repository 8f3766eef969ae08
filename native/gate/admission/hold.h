/* Launches that have to wait, in the thread that makes them. */
#ifndef ASTRARIUM_GATE_HOLD_H
#define ASTRARIUM_GATE_HOLD_H

#include "members/members.h"

enum { REPORT_NS = 200 * 1000 * 1000 }; /* after so long a wait the GPU reports again: what it wrote may be lost */

/* Returns when the policy lets this work go: whether it goes beside latency work. */
int hold_until_admitted(gate_board *board, member *me, const gate_work *work);
/* When the launch is in the books: who comes next is to see it there. */
void hold_ends(gate_board *board, const member *me);
/* For a moment, in a loop that looks at memory. */
void hold_relax(void);

#endif
