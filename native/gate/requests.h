/* Requests of a latency client: a launch of a graph, or all launches on a stream from the first to the next wait. */
#ifndef ASTRARIUM_GATE_REQUESTS_H
#define ASTRARIUM_GATE_REQUESTS_H

#include "lines.h"

/* Before a launch of a latency client. *graph*: the launch is a request of its own. */
void request_begins(member *of, line *on, kernel *graph);
/* Nothing more is launched for it: the GPU reports when it is through. */
void request_closes(member *of, line *on);
/* Those that this thread opened; all where there is one stream only, or *all* says so. */
void requests_close(member *of, int all);
/* Reads how long the last ones took, where that is known. */
void requests_harvest(member *of);

#endif
