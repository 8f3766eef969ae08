/* What a graph is made of: known before it runs, since its kernels ran one by one while the program warmed up. */
#ifndef ASTRARIUM_GATE_GRAPHS_H
#define ASTRARIUM_GATE_GRAPHS_H

#include "kernels.h"

/* A kernel is being captured; NULL: one that never ran. */
void graph_captures(const kernel *captured);
/* The capture has ended, and its graph is made executable. */
void graph_captured(void);
void graph_instantiated(CUgraphExec graph);

#endif
