/* Time that best effort may use beside a latency client that wants throughput: it is given out, fence by fence. */
#ifndef ASTRARIUM_GATE_SHARING_PACING_H
#define ASTRARIUM_GATE_SHARING_PACING_H

#include "board/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What best effort beside throughput keeps to itself, and shows on the board: fences passed, those permitted, and ns
 * that were earned and not used. */
typedef struct gate_pacing {
    uint32_t paces, permitted;
    uint64_t credit;
} gate_pacing;

/* Whether best effort is paced by time, because its latency clients want throughput. */
int gate_board_paced(const gate_board *board);
/* Permits *client* what it has earned in *elapsed* ns. */
void gate_board_pace(gate_board *board, int client, uint64_t now, uint64_t elapsed, gate_pacing *pacing);

#ifdef __cplusplus
}
#endif
#endif
