/* Launches of a best-effort client: they are held, or go behind a fence, where latency work could be in their way. */
#ifndef ASTRARIUM_GATE_BEST_EFFORT_H
#define ASTRARIUM_GATE_BEST_EFFORT_H

#include "admission/launch.h"
#include "members/members.h"

CUresult best_effort_launch(gate_board *board, member *me, launch *made);

#endif
