/* Requests of a latency client: a launch of a graph, or all launches on a stream from the first to the next wait. */
#ifndef ASTRARIUM_GATE_REQUESTS_H
#define ASTRARIUM_GATE_REQUESTS_H

#include "members/streams.h"

/* Before a launch of a latency client. *graph*: the launch is a request of its own. */
void request_begins(member *me, member_stream *stream, kernel *graph);
/* Nothing more is launched for it: the GPU reports when it is through. */
void request_closes(member *me, member_stream *stream);
/* Those that this thread opened; all where there is one stream only, or *all* says so. */
void requests_close(member *me, int all);
/* Reads how long the last ones took, where that is known. */
void requests_harvest(member *me);

#endif
