#define _GNU_SOURCE
#include "coverage.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { KERNEL = 3, CONCURRENT_KERNEL = 10, GRAPH_TRACE = 51, BUFFER = 1 << 20, LOOK_NS = 200 * 1000 * 1000 };

static gate_client *counted;
static int (*next_record)(uint8_t *, size_t, uint8_t **);
static int (*flush_all)(uint32_t);

static void buffer_requested(uint8_t **buffer, size_t *size, size_t *most) {
    *size = BUFFER;
    *most = 0;
    *buffer = aligned_alloc(64, BUFFER);
}

static void buffer_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    uint8_t *record = NULL;
    while (counted && next_record(buffer, valid, &record) == 0) {
        uint32_t kind = *(const uint32_t *)record; /* every record begins with it */
        if (kind == KERNEL || kind == CONCURRENT_KERNEL || kind == GRAPH_TRACE)
            __atomic_add_fetch(&counted->counts.ran, 1, __ATOMIC_RELAXED);
    }
    free(buffer);
}

static void *library(void) {
    static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
    for (size_t index = 0; index < sizeof names / sizeof *names; index++) {
        void *found = dlopen(names[index], RTLD_NOW);
        if (found) return found;
    }
    return NULL;
}

static int begun(void *cupti) {
    int (*callbacks)(void *, void *) = (int (*)(void *, void *))dlsym(cupti, "cuptiActivityRegisterCallbacks");
    int (*enable)(int) = (int (*)(int))dlsym(cupti, "cuptiActivityEnable");
    next_record = (int (*)(uint8_t *, size_t, uint8_t **))dlsym(cupti, "cuptiActivityGetNextRecord");
    flush_all = (int (*)(uint32_t))dlsym(cupti, "cuptiActivityFlushAll");
    if (!callbacks || !enable || !next_record || !flush_all) return 0;
    if (callbacks((void *)buffer_requested, (void *)buffer_completed) != 0) return 0;
    int kernels = enable(CONCURRENT_KERNEL), graphs = enable(GRAPH_TRACE);
    if (kernels || graphs) fprintf(stderr, "astrarium gate: CUPTI answers %d and %d\n", kernels, graphs);
    return !kernels && !graphs;
}

void coverage_begin(gate_client *client) {
    if (!getenv("ASTRARIUM_GATE_COVERAGE")) return;
    void *cupti = library();
    counted = client;
    if (cupti && begun(cupti)) return;
    counted = NULL;
    fputs("astrarium gate: what the driver runs cannot be counted (no usable CUPTI)\n", stderr);
}

void coverage_look(uint64_t now) {
    static uint64_t next;
    if (!counted || now < next) return;
    next = now + LOOK_NS;
    flush_all(0);
}

void coverage_end(void) {
    if (counted && flush_all) flush_all(1);
    counted = NULL;
}
