#define _GNU_SOURCE
#include "hooks.h"

#include <pthread.h>

#include "client.h"
#include "driver.h"
#include "graphs.h"

#define EXPORT __attribute__((visibility("default")))

/* Twins that end in _ptsz mean the calling thread's own stream where no stream is given. */
static CUstream own(CUstream stream) { return stream ? stream : (CUstream)(uintptr_t)CU_PER_THREAD_STREAM; }

/* kernels */

typedef struct plain_arguments {
    CUfunction function;
    const unsigned *grid, *block;
    unsigned shared;
    void **parameters, **extra;
} plain_arguments;

static CUresult submit_plain(const launch *made, CUstream stream) {
    const plain_arguments *a = made->arguments;
    return driver()->launch_kernel(a->function, a->grid[0], a->grid[1], a->grid[2], a->block[0], a->block[1],
                                   a->block[2], a->shared, stream, a->parameters, a->extra);
}

static CUresult submit_cooperative(const launch *made, CUstream stream) {
    const plain_arguments *a = made->arguments;
    return driver()->launch_cooperative(a->function, a->grid[0], a->grid[1], a->grid[2], a->block[0], a->block[1],
                                        a->block[2], a->shared, stream, a->parameters);
}

static CUresult launch_plain(const plain_arguments *a, CUstream stream, int cooperative) {
    launch made = {.submit = cooperative ? submit_cooperative : submit_plain, .stream = stream, .arguments = a,
                   .function = a->function, .grid = a->grid, .block = a->block, .shared = a->shared,
                   .rigid = cooperative};
    return client_launch(&made);
}

#define PLAIN(function, shared, parameters, extra) \
    {(function), (const unsigned[]){gx, gy, gz}, (const unsigned[]){bx, by, bz}, (shared), (parameters), (extra)}
#define DIMS unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz

EXPORT CUresult cuLaunchKernel(CUfunction f, DIMS, unsigned shared, CUstream stream, void **parameters, void **extra) {
    plain_arguments a = PLAIN(f, shared, parameters, extra);
    return launch_plain(&a, stream, 0);
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction f, DIMS, unsigned shared, CUstream stream, void **parameters,
                                    void **extra) {
    plain_arguments a = PLAIN(f, shared, parameters, extra);
    return launch_plain(&a, own(stream), 0);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, DIMS, unsigned shared, CUstream stream, void **parameters) {
    plain_arguments a = PLAIN(f, shared, parameters, NULL);
    return launch_plain(&a, stream, 1);
}

EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, DIMS, unsigned shared, CUstream stream,
                                               void **parameters) {
    plain_arguments a = PLAIN(f, shared, parameters, NULL);
    return launch_plain(&a, own(stream), 1);
}

/* kernels with attributes */

typedef struct ex_arguments {
    const CUlaunchConfig *config;
    CUfunction function;
    void **parameters, **extra;
} ex_arguments;

static CUresult submit_ex(const launch *made, CUstream stream) {
    const ex_arguments *a = made->arguments;
    CUlaunchConfig config = *a->config;
    config.stream = stream;
    return driver()->launch_kernel_ex(&config, a->function, a->parameters, a->extra);
}

static int cooperative(const CUlaunchConfig *config) {
    for (unsigned index = 0; index < config->attribute_count; index++)
        if (config->attributes[index].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) return 1;
    return 0;
}

static CUresult launch_ex(const ex_arguments *a, CUstream stream) {
    const CUlaunchConfig *config = a->config;
    launch made = {.submit = submit_ex, .stream = stream, .arguments = a, .function = a->function,
                   .grid = config->grid, .block = config->block, .shared = config->shared,
                   .rigid = cooperative(config)};
    return client_launch(&made);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra) {
    return launch_ex(&(ex_arguments){config, f, parameters, extra}, config->stream);
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra) {
    return launch_ex(&(ex_arguments){config, f, parameters, extra}, own(config->stream));
}

/* graphs */

static CUresult submit_graph(const launch *made, CUstream stream) {
    return driver()->graph_launch((CUgraphExec)made->arguments, stream);
}

static CUresult launch_graph(CUgraphExec graph, CUstream stream) {
    launch made = {.submit = submit_graph, .stream = stream, .sort = LAUNCH_GRAPH, .arguments = graph, .rigid = 1};
    return client_launch(&made);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) { return launch_graph(graph, stream); }
EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) { return launch_graph(graph, own(stream)); }

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
    CUresult result = driver()->instantiate(made, graph, flags);
    if (result == CUDA_SUCCESS && client_kind(NULL) >= 0) graph_instantiated(*made);
    return result;
}

/* copies: large best-effort ones go in pieces, so that a latency client's never wait long */

typedef struct copy_arguments {
    CUdeviceptr to, from; /* host addresses are numbers too */
    size_t bytes;
} copy_arguments;

static CUresult submit_in(const launch *made, CUstream stream) {
    const copy_arguments *a = made->arguments;
    return driver()->copy_in(a->to, (const void *)(uintptr_t)a->from, a->bytes, stream);
}

static CUresult submit_out(const launch *made, CUstream stream) {
    const copy_arguments *a = made->arguments;
    return driver()->copy_out((void *)(uintptr_t)a->to, a->from, a->bytes, stream);
}

enum { SMALL_COPY = 64 << 10 };

static CUresult copy_in_pieces(const copy_arguments *a, CUstream stream, CUresult (*submit)(const launch *, CUstream)) {
    size_t chunk = client_chunk(), done = 0;
    CUresult result = CUDA_SUCCESS;
    while (done < a->bytes && result == CUDA_SUCCESS) {
        size_t left = a->bytes - done, size = chunk && left > chunk ? chunk : left;
        copy_arguments piece = {a->to + done, a->from + done, size};
        launch made = {.submit = submit, .stream = stream, .sort = LAUNCH_COPY, .arguments = &piece};
        made.work = copy_work(size);
        result = client_launch(&made);
        done += size;
    }
    return result;
}

static CUresult copy(const copy_arguments *a, CUstream stream, CUresult (*submit)(const launch *, CUstream)) {
    if (a->bytes >= SMALL_COPY && client_kind(stream) == GATE_BEST_EFFORT) return copy_in_pieces(a, stream, submit);
    return submit(&(launch){.arguments = a}, stream);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return copy(&(copy_arguments){to, (uintptr_t)from, bytes}, stream, submit_in);
}
EXPORT CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return copy(&(copy_arguments){to, (uintptr_t)from, bytes}, own(stream), submit_in);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(&(copy_arguments){(uintptr_t)to, from, bytes}, stream, submit_out);
}
EXPORT CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(&(copy_arguments){(uintptr_t)to, from, bytes}, own(stream), submit_out);
}

/* waits: a latency request ends there */

#define WAITS(pauses, call)       \
    pauses;                       \
    CUresult result = (call);     \
    client_waited();              \
    return result

static CUresult wait_for(CUstream stream) { WAITS(client_pauses_at(stream), driver()->stream_synchronize(stream)); }
EXPORT CUresult cuStreamSynchronize(CUstream stream) { return wait_for(stream); }
EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) { return wait_for(own(stream)); }
EXPORT CUresult cuEventSynchronize(CUevent event) { WAITS(client_pauses(0), driver()->event_synchronize(event)); }
EXPORT CUresult cuCtxSynchronize(void) { WAITS(client_pauses(1), driver()->context_synchronize()); }
EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
    WAITS(client_pauses(1), driver()->this_context_synchronize(context));
}
EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    WAITS(client_pauses(0), driver()->copy_out_now(to, from, bytes));
}
EXPORT CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes) {
    WAITS(client_pauses(0), driver()->copy_out_now_own(to, from, bytes));
}

/* captures */

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    CUresult result = driver()->begin_capture(stream, mode);
    if (result == CUDA_SUCCESS) client_capture(1);
    return result;
}
EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
    return cuStreamBeginCapture_v2(own(stream), mode);
}
EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const void *after, const void *edges,
                                            size_t count, int mode) {
    CUresult result = driver()->begin_capture_to(stream, graph, after, edges, count, mode);
    if (result == CUDA_SUCCESS) client_capture(1);
    return result;
}
EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const void *after, const void *edges,
                                                 size_t count, int mode) {
    return cuStreamBeginCaptureToGraph(own(stream), graph, after, edges, count, mode);
}
static int captures(CUstream stream) {
    int status = CU_NOT_CAPTURING;
    return driver()->is_capturing(stream, &status) == CUDA_SUCCESS && status != CU_NOT_CAPTURING;
}
EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    int before = captures(stream); /* it may fail, and still end the capture; or there was none */
    CUresult result = driver()->end_capture(stream, graph);
    if (before && !captures(stream)) {
        client_capture(-1);
        graph_captured();
    }
    return result;
}
EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return cuStreamEndCapture(own(stream), graph);
}

/* streams */

static int priority_for(int wanted) {
    int least = 0, greatest = 0;
    if (client_policy() != GATE_STREAM_PRIORITY) return wanted;
    if (driver()->priority_range(&least, &greatest) != CUDA_SUCCESS) return wanted;
    return client_kind(NULL) == GATE_LATENCY ? greatest : least;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    return driver()->stream_create_priority(stream, flags, priority_for(0));
}
/* What was launched on it is reported while it can be. A capture may end this way too. */
EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    if (client_capturing() && captures(stream))
        client_capture(-1);
    else if (!client_capturing())
        client_stream_ends(stream);
    return driver()->stream_destroy(stream);
}
EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    return driver()->stream_create_priority(stream, flags, priority_for(priority));
}

/* handles */

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    CUresult result = driver()->library_kernel(kernel, library, name);
    if (result == CUDA_SUCCESS) kernel_is_context_free(*kernel);
    return result;
}
EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned count, CUlibrary library) {
    CUresult result = driver()->library_kernels(kernels, count, library);
    for (unsigned index = 0; result == CUDA_SUCCESS && index < count; index++) kernel_is_context_free(kernels[index]);
    return result;
}

/* for programs that know of the gate */

EXPORT int astrarium_gate_mark_thread(int kind, const char *name) { return client_mark_thread(kind, name); }
EXPORT void astrarium_gate_request_end(void) { client_request_end(); }
EXPORT void astrarium_gate_phase_end(void) { client_phase_end(); }

/* asking for addresses: ours for theirs. By address, so that a version with other arguments is never taken
 * for one of these. */

static CUresult swapped(CUresult result, void **found) {
    void *ours = result == CUDA_SUCCESS && found && *found ? hook_for(*found) : NULL;
    if (ours) *found = ours;
    return result;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags) {
    return swapped(driver()->get_proc_4(symbol, found, version, flags), found);
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status) {
    return swapped(driver()->get_proc_5(symbol, found, version, flags, status), found);
}

#define HOOKS(X)                                                                                                 \
    X(cuLaunchKernel) X(cuLaunchKernel_ptsz) X(cuLaunchKernelEx) X(cuLaunchKernelEx_ptsz)                        \
    X(cuLaunchCooperativeKernel) X(cuLaunchCooperativeKernel_ptsz) X(cuGraphLaunch) X(cuGraphLaunch_ptsz)        \
    X(cuMemcpyHtoDAsync_v2) X(cuMemcpyHtoDAsync_v2_ptsz) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoHAsync_v2_ptsz)    \
    X(cuStreamSynchronize) X(cuStreamSynchronize_ptsz) X(cuEventSynchronize) X(cuCtxSynchronize) X(cuCtxSynchronize_v2) \
    X(cuMemcpyDtoH_v2) X(cuStreamBeginCapture_v2) X(cuStreamBeginCapture_v2_ptsz) X(cuStreamEndCapture)          \
    X(cuStreamEndCapture_ptsz) X(cuStreamBeginCaptureToGraph) X(cuStreamBeginCaptureToGraph_ptsz)                \
    X(cuStreamCreate) X(cuStreamCreateWithPriority) X(cuStreamDestroy_v2) X(cuMemcpyDtoH_v2_ptds)                \
    X(cuGraphInstantiateWithFlags) X(cuLibraryGetKernel) X(cuLibraryEnumerateKernels) X(cuGetProcAddress)        \
    X(cuGetProcAddress_v2)

enum {
#define X(name) NUMBER_##name,
    HOOKS(X)
#undef X
    HOOK_COUNT
};

static struct {
    const void *theirs;
    void *ours;
} hooks[HOOK_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_theirs(void) {
    driver();
#define X(name) hooks[NUMBER_##name].theirs = driver_symbol(#name), hooks[NUMBER_##name].ours = (void *)name;
    HOOKS(X)
#undef X
}

void *hook_for(const void *found) {
    pthread_once(&once, find_theirs);
    for (int number = 0; number < HOOK_COUNT; number++)
        if (hooks[number].theirs && hooks[number].theirs == found) return hooks[number].ours;
    return NULL;
}
