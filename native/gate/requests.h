/* Requests of a latency client: a launch of a graph, or all launches from the first to the next wait. */
#ifndef ASTRARIUM_GATE_REQUESTS_H
#define ASTRARIUM_GATE_REQUESTS_H

#include "members.h"

/* Before a launch of a latency client. *graph*: the launch is a request of its own. */
void request_begins(member *of, CUstream stream, kernel *graph);
/* Nothing more is launched for it: the GPU reports when it is through. */
void request_closes(member *of);
/* Reads how long the last one took, if that is known. */
void request_harvest(member *of);

#endif
