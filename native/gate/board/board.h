/* Opening a board, or making it; what may be there instead is told, not used. */
#ifndef ASTRARIUM_GATE_BOARD_H
#define ASTRARIUM_GATE_BOARD_H

#include "board/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens the board at *path*, or makes it with the given policy. NULL with the reason in *why. */
gate_board *gate_board_open(const char *path, uint32_t policy, uint32_t sms, const char **why);
void gate_board_close(gate_board *board);

#ifdef __cplusplus
}
#endif
#endif
