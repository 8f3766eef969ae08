/* Counts what the driver says it ran (CUPTI activity records), to be held against what the gate has seen. */
#ifndef ASTRARIUM_GATE_COVERAGE_H
#define ASTRARIUM_GATE_COVERAGE_H

#include <stdint.h>

/* Adds to *ran* from now on, but only where ASTRARIUM_GATE_COVERAGE is set: tracing costs time, and excludes
 * profilers. */
void coverage_begin(uint64_t *ran);
/* Where the program waits anyway: takes what the driver has recorded so far. */
void coverage_look(uint64_t now);
void coverage_end(void);

#endif
