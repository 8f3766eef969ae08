/* What this process knows of the kernels and graphs that it launches. */
#ifndef ASTRARIUM_GATE_KERNELS_H
#define ASTRARIUM_GATE_KERNELS_H

#include "cuda_abi.h"
#include "decide.h"

enum { KERNEL_SAMPLES = 16 }; /* durations that are kept of each */

typedef struct kernel {
    uint64_t key; /* 0: a free place */
    const void *handle; /* a CUfunction, CUkernel or CUgraphExec */
    unsigned grid[3], block[3], shared;
    const char *name;
    gate_work work;
    int collective; /* its peers on other GPUs wait for it */
    int rigid;      /* it cannot run on a part of the GPU */
    uint64_t launches;
    uint32_t samples[KERNEL_SAMPLES]; /* ns, the latest ones */
    uint32_t sampled;
} kernel;

/* The place of a launch, made at first sight. NULL where the table is full: it is then unknown for ever. */
kernel *kernel_of(CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared);
/* The same, but NULL where it was never launched. */
kernel *kernel_known(CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared);
kernel *kernel_of_graph(CUgraphExec graph);
kernel *kernel_by_index(uint32_t index);
uint32_t kernel_index(const kernel *found);
enum { KERNEL_PLACES = 1 << 14 };

/* A CUkernel is launched like a CUfunction but must be asked for its name in another way. */
void kernel_is_context_free(const void *handle);
int kernel_context_free(const void *handle);

uint32_t kernel_sms_of_gpu(void);
/* Another measured duration. */
void kernel_measured(kernel *measured, uint64_t duration);
uint32_t kernel_quantile(const kernel *of, double share);
/* A copy of *bytes* between host and device. */
gate_work copy_work(size_t bytes);

#endif
