/* How many blocks and threads a kernel is launched with, and the bytes of shared memory for each block. */
#ifndef ASTRARIUM_GATE_KERNEL_SHAPE_H
#define ASTRARIUM_GATE_KERNEL_SHAPE_H

typedef struct kernel_shape {
    unsigned grid[3], block[3], shared;
} kernel_shape;

#endif
