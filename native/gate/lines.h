/* Streams of a member: what was launched on them, and how far the GPU has come. */
#ifndef ASTRARIUM_GATE_LINES_H
#define ASTRARIUM_GATE_LINES_H

#include "members.h"

/* Made at first sight. NULL: there are too many. */
line *line_of(member *of, CUstream stream);
/* One that is there, or NULL. */
line *line_known(member *of, CUstream stream);
void lines_stream_ends(member *of, CUstream stream);

/* Tells the GPU to report on the board when it has come this far. */
void line_mark(line *on);
void lines_mark(member *of);
/* The same, whatever it was told before. */
void lines_report(member *of);

/* In *stream*: the GPU writes a word of the board, or waits for it. 0: it cannot. */
int line_write(CUstream stream, const uint32_t *word, uint32_t value);
int line_await(CUstream stream, const uint32_t *word, uint32_t value, unsigned how);

#endif
