/* What this process knows of the kernels and graphs that it launches. */
#ifndef ASTRARIUM_GATE_KERNELS_H
#define ASTRARIUM_GATE_KERNELS_H

#include "driver/cuda_abi.h"
#include "kernels/kernel_shape.h"
#include "policy/decide.h"

enum { KERNEL_SAMPLES = 16 }; /* durations that are kept of each */
enum { KERNEL_CAPACITY = 1 << 14 }; /* so many kernels and graphs are told apart */

typedef struct kernel {
    uint64_t key; /* 0: a free entry, 1: one that is being made */
    const void *handle; /* a CUfunction, CUkernel or CUgraphExec */
    kernel_shape shape;
    const char *name;
    gate_work work;
    int collective; /* its peers on other GPUs wait for it */
    int rigid;      /* it cannot run on a part of the GPU */
    uint64_t launches;
    uint32_t samples[KERNEL_SAMPLES]; /* ns, the latest ones */
    uint32_t sampled;
} kernel;

/* The entry of a launch, made at first sight. NULL where the table is full: it is then unknown for ever. */
kernel *kernel_of(CUfunction function, const kernel_shape *shape);
/* The same, but NULL where it was never launched. */
kernel *kernel_known(CUfunction function, const kernel_shape *shape);
kernel *kernel_of_graph(CUgraphExec graph);
/* The entry of a number below KERNEL_CAPACITY; NULL: it is no kernel's yet. */
const kernel *kernel_by_index(uint32_t index);
uint32_t kernel_index(const kernel *known);

/* A CUkernel is launched like a CUfunction but must be asked for its name in another way. */
void kernel_is_context_free(const void *handle);
int kernel_context_free(const void *handle);

/* 0 while the calling thread has no context. */
uint32_t kernel_sms_of_gpu(void);
/* Another duration was measured, in ns. */
void kernel_measured(kernel *measured, uint64_t duration);
/* Of the latest durations measured; where there are none, what it is expected to take. */
uint32_t kernel_quantile(const kernel *known, double share);
/* A copy of *bytes* between host and device. */
gate_work copy_work(size_t bytes);

#endif
