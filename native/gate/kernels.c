#define _GNU_SOURCE
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "kinds.h"
#include "profile.h"

enum { CONTEXT_FREE_PLACES = 1 << 15 };
static const double COPY_BYTES_PER_NS = 20.0; /* PCIe 5 gives twice that, and is shared */

static kernel table[KERNEL_PLACES];
static const void *context_free[CONTEXT_FREE_PLACES];

static uint64_t mixed(uint64_t hash, uint64_t value) {
    hash ^= value + 0x9e3779b97f4a7c15ull + (hash << 6) + (hash >> 2);
    hash *= 0xbf58476d1ce4e5b9ull;
    return hash ^ (hash >> 29);
}

/* places */

static uint64_t key_of(const void *handle, const unsigned grid[3], const unsigned block[3], unsigned shared) {
    uint64_t blocks = grid[0] + grid[1] * 0x10000001ull + grid[2] * 0x1000000000000001ull;
    uint64_t threads = block[0] + ((uint64_t)block[1] << 11) + ((uint64_t)block[2] << 22) + ((uint64_t)shared << 32);
    uint64_t hash = mixed(mixed((uintptr_t)handle, blocks), threads);
    return hash < 2 ? 2 : hash; /* 0 is free, 1 is being made */
}

static kernel *place_of(uint64_t key, int *is_new) {
    for (uint64_t step = 0; step < 64; step++) {
        kernel *place = &table[(key + step) % KERNEL_PLACES];
        uint64_t found = __atomic_load_n(&place->key, __ATOMIC_ACQUIRE);
        if (found == key) return place;
        if (found == 0 && __atomic_compare_exchange_n(&place->key, &found, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return *is_new = 1, place;
    }
    return NULL;
}

kernel *kernel_by_index(uint32_t index) { return &table[index]; }
uint32_t kernel_index(const kernel *found) { return (uint32_t)(found - table); }

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

static uint32_t sms_of(const kernel *of, CUfunction function) {
    int together = 0;
    uint64_t blocks = (uint64_t)of->grid[0] * of->grid[1] * of->grid[2];
    int threads = (int)(of->block[0] * of->block[1] * of->block[2]);
    uint32_t all = kernel_sms_of_gpu();
    const driver_table *real = driver();
    if (!function || !real->occupancy || real->occupancy(&together, function, threads, of->shared) != CUDA_SUCCESS)
        return all;
    uint64_t needed = (blocks + (uint64_t)(together > 0 ? together : 1) - 1) / (uint64_t)(together > 0 ? together : 1);
    return needed < all ? (uint32_t)needed : all;
}

static void examine(kernel *made, CUfunction function) {
    made->name = name_of(function);
    made->collective = strstr(made->name, "nccl") != NULL;
    made->work.kind = kind_by_name(made->name);
    made->work.sms = sms_of(made, as_function(function));
    profile_recall(made);
}

kernel *kernel_of(CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared) {
    int is_new = 0;
    uint64_t key = key_of(function, grid, block, shared);
    kernel *place = place_of(key, &is_new);
    if (!is_new) return place;
    place->handle = function;
    memcpy(place->grid, grid, sizeof place->grid);
    memcpy(place->block, block, sizeof place->block);
    place->shared = shared;
    examine(place, function);
    __atomic_store_n(&place->key, key, __ATOMIC_RELEASE);
    return place;
}

kernel *kernel_known(CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared) {
    uint64_t key = key_of(function, grid, block, shared);
    for (uint64_t step = 0; step < 64; step++) {
        kernel *place = &table[(key + step) % KERNEL_PLACES];
        uint64_t found = __atomic_load_n(&place->key, __ATOMIC_ACQUIRE);
        if (found == key) return place;
        if (found == 0) return NULL;
    }
    return NULL;
}

kernel *kernel_of_graph(CUgraphExec graph) {
    static const unsigned none[3] = {0, 0, 0};
    int is_new = 0;
    uint64_t key = key_of(graph, none, none, ~0u);
    kernel *place = place_of(key, &is_new);
    if (!is_new) return place;
    place->handle = graph;
    place->name = "graph";
    place->work.sms = kernel_sms_of_gpu();
    __atomic_store_n(&place->key, key, __ATOMIC_RELEASE);
    return place;
}

/* handles of the second sort */

void kernel_is_context_free(const void *handle) {
    for (uint64_t step = 0, at = mixed(0, (uintptr_t)handle); step < 64; step++) {
        const void **place = &context_free[(at + step) % CONTEXT_FREE_PLACES];
        const void *none = NULL;
        if (__atomic_load_n(place, __ATOMIC_ACQUIRE) == handle) return;
        if (__atomic_compare_exchange_n(place, &none, handle, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return;
    }
}

int kernel_context_free(const void *handle) {
    for (uint64_t step = 0, at = mixed(0, (uintptr_t)handle); step < 64; step++) {
        const void *found = __atomic_load_n(&context_free[(at + step) % CONTEXT_FREE_PLACES], __ATOMIC_ACQUIRE);
        if (found == handle) return 1;
        if (!found) return 0;
    }
    return 0;
}

/* durations */

static int ascending(const void *one, const void *other) {
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return (a > b) - (a < b);
}

uint32_t kernel_quantile(const kernel *of, double share) {
    uint32_t sorted[KERNEL_SAMPLES];
    uint32_t count = of->sampled < KERNEL_SAMPLES ? of->sampled : KERNEL_SAMPLES;
    if (!count) return (uint32_t)of->work.duration;
    memcpy(sorted, of->samples, count * sizeof *sorted);
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
