/* Fences of latency clients: who stops at them, and who opens them for the dead. */
#ifndef ASTRARIUM_GATE_SHARING_FENCES_H
#define ASTRARIUM_GATE_SHARING_FENCES_H

#include "board/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether *client* must stop at this one's fence. */
int gate_board_fenced(const gate_board *board, int client, const gate_client *other);
/* Whether it must at its *number*th fence. One that has long been quiet is asked at few of them: every question
 * costs the GPU a microsecond, and at worst a first request finds some windows before it. */
int gate_board_asked(const gate_board *board, int client, const gate_client *other, uint64_t now, uint64_t number);
/* Whether there are latency clients whose fences nobody can stop at. */
int gate_board_holds(const gate_board *board);
/* Frees the places of the dead, and opens the fences of latency clients that gave no sign of life for too long. */
void gate_board_watch(gate_board *board, uint64_t now);

#ifdef __cplusplus
}
#endif
#endif
