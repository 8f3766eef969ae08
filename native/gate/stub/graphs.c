/* Graphs: lists of work that run as one. */
#include <stdlib.h>

#include "stub.h"

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
    stub_lock();
    NOTE("cuGraphInstantiateWithFlags", NUMBER(graph), flags);
    int known = IS(graph, GRAPH_MAGIC);
    if (known) {
        *made = calloc(1, sizeof **made);
        **made = (struct stub_graph){.magic = GRAPH_MAGIC, .executable = 1};
        for (const stub_work *node = graph->nodes.first; node; node = node->next) stub_append(&(*made)->nodes, *node);
    }
    stub_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult destroy(const char *call, CUgraph graph) {
    NOTE(call, NUMBER(graph));
    int known = IS(graph, GRAPH_MAGIC);
    if (known) graph->magic = 0; /* it may still be queued, so its memory stays */
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec graph) { LOCKED(destroy("cuGraphExecDestroy", graph)); }

EXPORT CUresult cuGraphDestroy(CUgraph graph) { LOCKED(destroy("cuGraphDestroy", graph)); }

static uint64_t duration_of(const stub_work *node) {
    return node->kind == STUB_KERNEL ? node->function->duration : node->duration;
}

static CUresult do_cuGraphLaunch(const char *call, CUgraphExec graph, CUstream stream) {
    NOTE(call, NUMBER(graph), NUMBER(stream));
    CUstream found;
    CUresult error = stub_stream_of(stream, &found);
    if (error || !IS(graph, GRAPH_MAGIC) || !graph->executable) return error ? error : CUDA_ERROR_INVALID_HANDLE;
    uint64_t duration = 0;
    for (const stub_work *node = graph->nodes.first; node; node = node->next) duration += duration_of(node);
    return stub_submit(found, (stub_work){.kind = STUB_GRAPH, .graph = graph, .duration = duration});
}
TWINS(cuGraphLaunch, _ptsz, (CUgraphExec graph, CUstream stream), graph, stream)
