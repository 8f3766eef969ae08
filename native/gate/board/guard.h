/* Boards whose file is cut short while they are mapped. Nothing can keep a process of the same user from doing that,
 * and to touch what is gone is a SIGBUS. The handler puts empty memory in the place of the whole board, with all fences
 * open, and tells who it belongs to; a SIGBUS of the program itself goes to the handler that was there before. */
#ifndef ASTRARIUM_GATE_GUARD_H
#define ASTRARIUM_GATE_GUARD_H

#include "board/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Around the time in which a board is mapped. 0: there are too many. */
int gate_guard_begins(gate_board *board);
void gate_guard_ends(const gate_board *board);
/* Whether the file of a board is gone. What is read from it since then is nothing. */
int gate_guard_lost(const gate_board *board);
/* When that happens, *value* is written to *word*, and *line* to standard error. */
void gate_guard_tells(const gate_board *board, int *word, int value, const char *line);
/* Programs may set a handler of their own later. Now and then ours is put before it, and passes on to it. */
void gate_guard_stays(void);
/* A thread that blocks SIGBUS would end the process. */
void gate_guard_unblock(void);

#ifdef __cplusplus
}
#endif
#endif
