/* How long kernels take: a pair of events around some launches, read when the GPU has passed them. */
#ifndef ASTRARIUM_GATE_MEASURE_H
#define ASTRARIUM_GATE_MEASURE_H

#include "kernels/kernels.h"

/* The number of a measurement that has begun, or -1: every launch may be measured, few are. */
int measure_begin(kernel *launched, CUstream stream);
void measure_end(int number, CUstream stream);
/* Reads what has ended. */
void measure_harvest(void);

/* The time between two events that have passed, in ns; 0 where they have not. */
uint64_t measure_between(CUevent begin, CUevent end);

#endif
