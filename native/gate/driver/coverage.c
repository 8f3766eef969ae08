#define _GNU_SOURCE
#include "driver/coverage.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { KERNEL = 3, CONCURRENT_KERNEL = 10, GRAPH_TRACE = 51, BUFFER = 1 << 20, LOOK_NS = 200 * 1000 * 1000 };

static uint64_t *counter; /* NULL: nothing is counted */
static int (*next_record)(uint8_t *, size_t, uint8_t **);
static int (*flush_all)(uint32_t);

static void buffer_requested(uint8_t **buffer, size_t *size, size_t *most) {
    *size = BUFFER;
    *most = 0;
    *buffer = aligned_alloc(64, BUFFER);
}

static void buffer_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context;
    (void)stream;
    (void)size;
    uint8_t *record = NULL;
    while (counter && next_record(buffer, valid, &record) == 0) {
        uint32_t kind = *(const uint32_t *)record; /* every record begins with it */
        if (kind == KERNEL || kind == CONCURRENT_KERNEL || kind == GRAPH_TRACE)
            __atomic_add_fetch(counter, 1, __ATOMIC_RELAXED);
    }
    free(buffer);
}

static void *library(void) {
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
    for (size_t index = 0; index < sizeof names / sizeof *names; index++) {
        void *cupti = dlopen(names[index], RTLD_NOW);
        if (cupti) return cupti;
    }
    return NULL;
}

static int enabled(int (*enable)(int)) {
    int kernels = enable(CONCURRENT_KERNEL);
    int graphs = enable(GRAPH_TRACE);
    if (kernels || graphs) fprintf(stderr, "astrarium gate: CUPTI answers %d and %d\n", kernels, graphs);
    return !kernels && !graphs;
}

static int begun(void *cupti) {
    int (*callbacks)(void *, void *) = (int (*)(void *, void *))dlsym(cupti, "cuptiActivityRegisterCallbacks");
    int (*enable)(int) = (int (*)(int))dlsym(cupti, "cuptiActivityEnable");
    next_record = (int (*)(uint8_t *, size_t, uint8_t **))dlsym(cupti, "cuptiActivityGetNextRecord");
    flush_all = (int (*)(uint32_t))dlsym(cupti, "cuptiActivityFlushAll");
    if (!callbacks || !enable || !next_record || !flush_all) return 0;
    return callbacks((void *)buffer_requested, (void *)buffer_completed) == 0 && enabled(enable);
}

void coverage_begin(uint64_t *ran) {
    if (!getenv("ASTRARIUM_GATE_COVERAGE")) return;
    void *cupti = library();
    counter = ran;
    if (cupti && begun(cupti)) return;
    counter = NULL;
    fputs("astrarium gate: what the driver runs cannot be counted (no usable CUPTI)\n", stderr);
}

void coverage_look(uint64_t now) {
    static uint64_t next;
    if (!counter || now < next) return;
    next = now + LOOK_NS;
    flush_all(0);
}

void coverage_end(void) {
    if (counter && flush_all) flush_all(1);
    counter = NULL;
}
