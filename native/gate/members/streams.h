/* Streams of a member: what was launched on them, and how far the GPU has come. */
#ifndef ASTRARIUM_GATE_STREAMS_H
#define ASTRARIUM_GATE_STREAMS_H

#include "members/members.h"

/* Made at first sight. NULL: there are too many. */
member_stream *stream_of(member *me, CUstream handle);
/* Whether only one is known: the GPU then does in order whatever this client launches. */
static inline int streams_only_one(const member *me) { return me->streams_used == 1; }
/* One that is there, or NULL. */
member_stream *stream_known(member *me, CUstream handle);
void stream_ends(member *me, CUstream handle);

/* Tells the GPU to report on the board when it has come this far. */
void stream_mark(member_stream *stream);
void streams_mark(member *me);
/* The same, whatever it was told before. */
void streams_report(member *me);

#endif
