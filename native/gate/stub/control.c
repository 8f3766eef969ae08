/* What a test says to the stub, and what it asks: the clock, kernels, and what is where. */
#include <stdio.h>
#include <stdlib.h>

#include "stub.h"

/* How many kernels (0), graphs (1), copies (2), writes (3), records (4), waits (5) or fences (6) the device has
 * done; those of graphs are counted too. */
EXPORT uint64_t stub_did(int kind) {
    stub_lock();
    uint64_t count = stub_done[kind];
    stub_unlock();
    return count;
}

/* ---- time */

/* Work is done as soon as it is launched (1, at first), or when the test says so (0). */
EXPORT void stub_automatic(int automatic) {
    stub_lock();
    stub_is_automatic = automatic;
    if (automatic) stub_run_what_can();
    stub_unlock();
}

/* The next so many kernels, graphs and copies of a stream end, with the marks that follow them. All: -1. How
 * many there were. */
EXPORT int stub_complete(CUstream stream, int count) {
    stub_lock();
    CUstream found = NULL;
    int done = stub_stream_of(stream, &found) ? 0 : stub_run_some(found, count);
    stub_unlock();
    return done;
}

/* The next so many entries of the queue, marks and waits as well. How many could be done. */
EXPORT int stub_step_entries(CUstream stream, int count) {
    stub_lock();
    CUstream found = NULL;
    int done = stub_stream_of(stream, &found) ? 0 : stub_run_entries(found, count);
    stub_unlock();
    return done;
}

/* Time passes, and what ends in it ends. */
EXPORT void stub_advance(uint64_t ns) {
    stub_lock();
    stub_now += ns;
    stub_run_until_now();
    stub_unlock();
}

EXPORT uint64_t stub_time(void) {
    stub_lock();
    uint64_t now = stub_now;
    stub_unlock();
    return now;
}

/* ---- kernels */

static CUfunction function_named(const char *name, int registers, int threads, int shared) {
    CUfunction function = calloc(1, sizeof *function);
    function->magic = FUNCTION_MAGIC;
    function->registers = registers;
    function->threads = threads;
    function->shared = shared;
    snprintf(function->name, sizeof function->name, "%s", name);
    return function;
}

/* A CUfunction; it needs so many registers a thread and bytes of shared memory, and takes so many threads. */
EXPORT CUfunction stub_kernel(const char *name, int registers, int threads, int shared) {
    return function_named(name, registers, threads, shared);
}

EXPORT CUlibrary stub_library(void) {
    CUlibrary library = calloc(1, sizeof *library);
    library->magic = LIBRARY_MAGIC;
    return library;
}

/* A CUkernel, as the runtime launches them; the driver's calls find it in its library. */
EXPORT CUkernel stub_library_kernel(CUlibrary library, const char *name, int registers, int threads, int shared) {
    CUkernel kernel = function_named(name, registers, threads, shared);
    kernel->function = function_named(name, registers, threads, shared);
    stub_lock();
    kernel->library = library;
    kernel->next = library->kernels;
    library->kernels = kernel;
    library->count++;
    stub_unlock();
    return kernel;
}

EXPORT void stub_kernel_duration(CUfunction function, uint64_t ns) {
    stub_lock();
    function->duration = ns;
    if (function->function) function->function->duration = ns;
    stub_unlock();
}

/* How often it has run, in graphs too. */
EXPORT uint64_t stub_kernel_runs(CUfunction function) {
    stub_lock();
    uint64_t runs = function->runs;
    stub_unlock();
    return runs;
}

/* A record of an event takes so long (0 at first): the real ones show some time around nothing. */
EXPORT void stub_record_cost(uint64_t ns) {
    stub_lock();
    stub_record_ns = ns;
    stub_unlock();
}

EXPORT void stub_copy_speed(uint64_t bytes_per_us) {
    stub_lock();
    stub_copy_bytes_per_us = bytes_per_us;
    stub_unlock();
}

/* ---- what is where */

/* How often a stream was used after it was destroyed. */
EXPORT uint64_t stub_stale(void) {
    stub_lock();
    uint64_t count = stub_stale_count;
    stub_unlock();
    return count;
}

/* Entries of a stream's queue, or nodes of a graph, of a kind (see stub_did). */
static int count_kind(const stub_queue *queue, int kind) {
    int count = 0;
    for (const stub_work *work = queue->first; work; work = work->next) count += (int)work->kind == kind;
    return count;
}

EXPORT int stub_queued(CUstream stream, int kind) {
    stub_lock();
    CUstream found = NULL;
    int count = stub_stream_of(stream, &found) ? -1 : count_kind(&found->queue, kind);
    stub_unlock();
    return count;
}

EXPORT int stub_nodes(CUgraph graph, int kind) {
    stub_lock();
    int count = count_kind(&graph->nodes, kind);
    stub_unlock();
    return count;
}

/* The SMs that work of this stream may use. */
EXPORT int stub_stream_sms(CUstream stream) {
    stub_lock();
    CUstream found = NULL;
    int sms = stub_stream_of(stream, &found) ? -1 : (int)found->sms;
    stub_unlock();
    return sms;
}
