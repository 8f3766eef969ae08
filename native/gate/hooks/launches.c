/* Kernels, plain, cooperative and with attributes, and graphs. */
#include "admission/admission.h"
#include "hooks/hooks.h"

/* As the driver's functions take a shape. */
#define SPREAD(shape)                                                                                        \
    (shape).grid[0], (shape).grid[1], (shape).grid[2], (shape).block[0], (shape).block[1], (shape).block[2], \
        (shape).shared

typedef struct plain_arguments {
    CUfunction function;
    kernel_shape shape;
    void **parameters, **extra;
} plain_arguments;

static CUresult submit_plain(const launch *made, CUstream stream) {
    const plain_arguments *a = made->arguments;
    return driver()->launch_kernel(a->function, SPREAD(a->shape), stream, a->parameters, a->extra);
}

static CUresult submit_cooperative(const launch *made, CUstream stream) {
    const plain_arguments *a = made->arguments;
    return driver()->launch_cooperative(a->function, SPREAD(a->shape), stream, a->parameters);
}

static CUresult launch_plain(const plain_arguments *a, CUstream stream, int cooperative) {
    launch made = {.submit = cooperative ? submit_cooperative : submit_plain,
                   .stream = stream,
                   .arguments = a,
                   .function = a->function,
                   .shape = a->shape,
                   .rigid = cooperative};
    return client_launch(&made);
}

#define PLAIN(function, shared, parameters, extra) \
    {(function), {{gx, gy, gz}, {bx, by, bz}, (shared)}, (parameters), (extra)}
#define DIMS unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz

EXPORT CUresult cuLaunchKernel(CUfunction f, DIMS, unsigned shared, CUstream stream, void **parameters, void **extra) {
    plain_arguments a = PLAIN(f, shared, parameters, extra);
    return launch_plain(&a, stream, 0);
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction f, DIMS, unsigned shared, CUstream stream, void **parameters,
                                    void **extra) {
    plain_arguments a = PLAIN(f, shared, parameters, extra);
    return launch_plain(&a, thread_stream(stream), 0);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, DIMS, unsigned shared, CUstream stream, void **parameters) {
    plain_arguments a = PLAIN(f, shared, parameters, NULL);
    return launch_plain(&a, stream, 1);
}

EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, DIMS, unsigned shared, CUstream stream,
                                               void **parameters) {
    plain_arguments a = PLAIN(f, shared, parameters, NULL);
    return launch_plain(&a, thread_stream(stream), 1);
}

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

static kernel_shape shape_of(const CUlaunchConfig *config) {
    const unsigned *grid = config->grid, *block = config->block;
    return (kernel_shape){{grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, config->shared};
}

static CUresult launch_ex(const ex_arguments *a, CUstream stream) {
    const CUlaunchConfig *config = a->config;
    launch made = {.submit = submit_ex,
                   .stream = stream,
                   .arguments = a,
                   .function = a->function,
                   .shape = shape_of(config),
                   .rigid = cooperative(config)};
    return client_launch(&made);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra) {
    return launch_ex(&(ex_arguments){config, f, parameters, extra}, config->stream);
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **parameters, void **extra) {
    return launch_ex(&(ex_arguments){config, f, parameters, extra}, thread_stream(config->stream));
}

static CUresult submit_graph(const launch *made, CUstream stream) {
    return driver()->graph_launch((CUgraphExec)made->arguments, stream);
}

static CUresult launch_graph(CUgraphExec graph, CUstream stream) {
    launch made = {.submit = submit_graph, .stream = stream, .sort = LAUNCH_GRAPH, .arguments = graph, .rigid = 1};
    return client_launch(&made);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) { return launch_graph(graph, stream); }
EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
    return launch_graph(graph, thread_stream(stream));
}
