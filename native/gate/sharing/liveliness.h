/* How long a client is believed to be at work that gives no sign of life. */
#ifndef ASTRARIUM_GATE_SHARING_LIVELINESS_H
#define ASTRARIUM_GATE_SHARING_LIVELINESS_H

#include "board/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A client that stopped in the middle, or never says when it has done, is believed for a while only. */
int gate_client_lively(const gate_board *board, const gate_client *client, uint64_t now);
/* Whether it is lively, and has work on the GPU. */
int gate_client_at_work(const gate_board *board, const gate_client *client, uint64_t now);

#ifdef __cplusplus
}
#endif
#endif
