/* Launches of a latency client: they go at once, and close the fences at which best effort stops. */
#ifndef ASTRARIUM_GATE_LATENCY_H
#define ASTRARIUM_GATE_LATENCY_H

#include "admission/launch.h"
#include "members/members.h"

CUresult latency_launch(gate_board *board, member *me, launch *made);

#endif
