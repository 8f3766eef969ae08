#define _GNU_SOURCE
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "kernels/profile.h"
#include "policy/kinds.h"

enum { CONTEXT_FREE_CAPACITY = 1 << 15 };
static const double COPY_BYTES_PER_NS = 20.0; /* PCIe 5 gives twice that, and is shared */

static kernel table[KERNEL_CAPACITY];
static const void *context_free[CONTEXT_FREE_CAPACITY];

enum { PROBES = 64 }; /* entries that are looked at for one key */

static uint64_t mixed(uint64_t hash, uint64_t value) {
    hash ^= value + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
    hash *= 0xbf58476d1ce4e5b9ull;
    return hash ^ (hash >> 29);
}

/* entries */

static uint64_t key_of(const void *handle, const kernel_shape *shape) {
    const unsigned *grid = shape->grid, *block = shape->block;
    uint64_t blocks = grid[0] + grid[1] * 0x10000001ull + grid[2] * 0x1000000000000001ull;
    uint64_t threads =
        block[0] + ((uint64_t)block[1] << 11) + ((uint64_t)block[2] << 22) + ((uint64_t)shape->shared << 32);
    uint64_t hash = mixed(mixed((uintptr_t)handle, blocks), threads);
    return hash < 2 ? 2 : hash;
}

/* Whoever claims a free entry fills it in, and says its key when it has. */
static int claimed(kernel *entry) {
    uint64_t nothing = 0;
    return __atomic_compare_exchange_n(&entry->key, &nothing, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static kernel *entry_of(uint64_t key, int *is_new) {
    for (uint64_t step = 0; step < PROBES; step++) {
        kernel *entry = &table[(key + step) % KERNEL_CAPACITY];
        uint64_t there = __atomic_load_n(&entry->key, __ATOMIC_ACQUIRE);
        if (there == key) return entry;
        *is_new = there == 0 && claimed(entry);
        if (*is_new) return entry;
    }
    return NULL;
}

const kernel *kernel_by_index(uint32_t index) { return table[index].key < 2 ? NULL : &table[index]; }
uint32_t kernel_index(const kernel *known) { return (uint32_t)(known - table); }

/* first sight */

static CUfunction as_function(CUfunction function) {
    CUfunction made = NULL;
    if (!kernel_context_free(function)) return function;
    const driver_table *real = driver();
    return real->kernel_function && real->kernel_function(&made, (CUkernel)function) == CUDA_SUCCESS ? made : NULL;
}

static const char *name_of(CUfunction function) {
    const char *name = NULL;
    const driver_table *real = driver();
    CUresult asked = 1;
    if (kernel_context_free(function)) {
        if (real->kernel_name) asked = real->kernel_name(&name, (CUkernel)function);
    } else if (real->function_name) {
        asked = real->function_name(&name, function);
    }
    return asked == CUDA_SUCCESS && name ? strdup(name) : "";
}

uint32_t kernel_sms_of_gpu(void) {
    static int sms;
    CUdevice device;
    if (!sms && driver()->context_device(&device) == CUDA_SUCCESS)
        driver()->device_attribute(&sms, CU_DEVICE_ATTRIBUTE_SMS, device);
    return (uint32_t)sms;
}

static uint32_t sms_of(const kernel_shape *shape, CUfunction function) {
    int together = 0;
    uint64_t blocks = (uint64_t)shape->grid[0] * shape->grid[1] * shape->grid[2];
    int threads = (int)(shape->block[0] * shape->block[1] * shape->block[2]);
    uint32_t all = kernel_sms_of_gpu();
    const driver_table *real = driver();
    if (!function || !real->occupancy || real->occupancy(&together, function, threads, shape->shared) != CUDA_SUCCESS)
        return all;
    uint64_t on_one = (uint64_t)(together > 0 ? together : 1);
    uint64_t needed = (blocks + on_one - 1) / on_one;
    return needed < all ? (uint32_t)needed : all;
}

/* What its name and its occupancy say, and over that what a profile says. */
static void examine(kernel *made, CUfunction function) {
    made->name = name_of(function);
    made->collective = strstr(made->name, "nccl") != NULL;
    made->work.kind = kind_by_name(made->name);
    made->work.sms = sms_of(&made->shape, as_function(function));
    profile_recall(made->name, &made->shape, &made->work);
}

kernel *kernel_of(CUfunction function, const kernel_shape *shape) {
    int is_new = 0;
    uint64_t key = key_of(function, shape);
    kernel *entry = entry_of(key, &is_new);
    if (!is_new) return entry;
    entry->handle = function;
    entry->shape = *shape;
    examine(entry, function);
    __atomic_store_n(&entry->key, key, __ATOMIC_RELEASE);
    return entry;
}

kernel *kernel_known(CUfunction function, const kernel_shape *shape) {
    uint64_t key = key_of(function, shape);
    for (uint64_t step = 0; step < PROBES; step++) {
        kernel *entry = &table[(key + step) % KERNEL_CAPACITY];
        uint64_t there = __atomic_load_n(&entry->key, __ATOMIC_ACQUIRE);
        if (there == key) return entry;
        if (there == 0) return NULL;
    }
    return NULL;
}

kernel *kernel_of_graph(CUgraphExec graph) {
    static const kernel_shape no_kernel = {{0}, {0}, ~0u};
    int is_new = 0;
    uint64_t key = key_of(graph, &no_kernel);
    kernel *entry = entry_of(key, &is_new);
    if (!is_new) return entry;
    entry->handle = graph;
    entry->name = "graph";
    entry->work.sms = kernel_sms_of_gpu();
    __atomic_store_n(&entry->key, key, __ATOMIC_RELEASE);
    return entry;
}

/* handles of kernels that belong to no context */

void kernel_is_context_free(const void *handle) {
    for (uint64_t step = 0, at = mixed(0, (uintptr_t)handle); step < PROBES; step++) {
        const void **entry = &context_free[(at + step) % CONTEXT_FREE_CAPACITY];
        const void *none = NULL;
        if (__atomic_load_n(entry, __ATOMIC_ACQUIRE) == handle) return;
        if (__atomic_compare_exchange_n(entry, &none, handle, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return;
    }
}

int kernel_context_free(const void *handle) {
    for (uint64_t step = 0, at = mixed(0, (uintptr_t)handle); step < PROBES; step++) {
        const void *there = __atomic_load_n(&context_free[(at + step) % CONTEXT_FREE_CAPACITY], __ATOMIC_ACQUIRE);
        if (there == handle) return 1;
        if (!there) return 0;
    }
    return 0;
}

/* durations */

static int ascending(const void *one, const void *other) {
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return (a > b) - (a < b);
}

uint32_t kernel_quantile(const kernel *known, double share) {
    uint32_t sorted[KERNEL_SAMPLES];
    uint32_t count = known->sampled < KERNEL_SAMPLES ? known->sampled : KERNEL_SAMPLES;
    if (!count) return (uint32_t)known->work.duration;
    memcpy(sorted, known->samples, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, ascending);
    return sorted[(uint32_t)(share * (count - 1) + 0.5)];
}

void kernel_measured(kernel *measured, uint64_t duration) {
    measured->samples[measured->sampled % KERNEL_SAMPLES] = duration > UINT32_MAX ? UINT32_MAX : (uint32_t)duration;
    measured->sampled++;
    /* Others' work and gaps between launches can only add to it. */
    measured->work.duration = kernel_quantile(measured, 0.25);
}

gate_work copy_work(size_t bytes) {
    uint64_t duration = (uint64_t)((double)bytes / COPY_BYTES_PER_NS) + 1;
    return (gate_work){.duration = duration, .sms = 0, .kind = GATE_COPY};
}
