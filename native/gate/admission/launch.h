/* A call that is on its way to the driver. */
#ifndef ASTRARIUM_GATE_LAUNCH_H
#define ASTRARIUM_GATE_LAUNCH_H

#include "kernels/kernels.h"

typedef enum launch_sort { LAUNCH_KERNEL, LAUNCH_GRAPH, LAUNCH_COPY } launch_sort;

typedef struct launch {
    CUresult (*submit)(const struct launch *, CUstream); /* makes the call, on the stream it is told */
    CUstream stream;
    launch_sort sort;
    /* of a kernel, which is looked up by them */
    CUfunction function;
    kernel_shape shape;
    kernel *kernel; /* NULL: a copy, or one that there is no entry for */
    gate_work work;
    int rigid;      /* must have the SMs that it asks for: not to be sent to a partition */
    const void *arguments;
} launch;

/* Fills in the kernel or graph that is launched, and what is known of it. */
void launch_look_up(launch *made);
/* Makes the call, on its own stream. Some are timed: kernels that are not known, and now and then the others. A latency
 * client's graphs are not: they are timed as its requests. */
CUresult launch_submit(const launch *made, gate_class kind);

#endif
