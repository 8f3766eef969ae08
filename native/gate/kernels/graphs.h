/* Captures, and what a graph is made of: known before it runs, since its kernels ran one by one while the program
 * warmed up. */
#ifndef ASTRARIUM_GATE_GRAPHS_H
#define ASTRARIUM_GATE_GRAPHS_H

#include "kernels/kernels.h"

/* While anything is captured nothing is held and nothing is reported. */
void graph_capture_begins(void);
void graph_capture_ends(void);
int graph_capturing(void);

/* A kernel is being captured; NULL: one that never ran. */
void graph_captures(const kernel *captured);
/* The capture has ended in a graph, which is made executable next. */
void graph_captured(void);
void graph_instantiated(CUgraphExec graph);

#endif
