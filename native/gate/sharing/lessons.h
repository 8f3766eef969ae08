/* What latency requests bear, and what is learnt from them. */
#ifndef ASTRARIUM_GATE_SHARING_LESSONS_H
#define ASTRARIUM_GATE_SHARING_LESSONS_H

#include "board/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Best-effort work of a kind was launched: latency requests that run now bear it. */
void gate_board_charge(gate_board *board, uint64_t now, uint32_t kind, uint64_t duration);
/* A latency request begins: what is in flight now was there before it. */
void gate_board_request_begins(gate_board *board, int client, uint64_t alone);
/* It has ended after *duration*, in which so many kernels were launched. */
void gate_board_request_ended(gate_board *board, int client, uint64_t duration, uint32_t launches);

#ifdef __cplusplus
}
#endif
#endif
