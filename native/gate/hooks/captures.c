/* Captures of launches into graphs, and graphs that are made of them. */
#include "hooks/captures.h"

#include "admission/admission.h"
#include "hooks/hooks.h"
#include "kernels/graphs.h"

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    CUresult result = driver()->begin_capture(stream, mode);
    if (result == CUDA_SUCCESS) graph_capture_begins();
    return result;
}

EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
    return cuStreamBeginCapture_v2(thread_stream(stream), mode);
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const void *after, const void *edges,
                                            size_t count, int mode) {
    CUresult result = driver()->begin_capture_to(stream, graph, after, edges, count, mode);
    if (result == CUDA_SUCCESS) graph_capture_begins();
    return result;
}

EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const void *after, const void *edges,
                                                 size_t count, int mode) {
    return cuStreamBeginCaptureToGraph(thread_stream(stream), graph, after, edges, count, mode);
}

int hook_stream_captures(CUstream stream) {
    int status = CU_NOT_CAPTURING;
    return driver()->is_capturing(stream, &status) == CUDA_SUCCESS && status != CU_NOT_CAPTURING;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    int before = hook_stream_captures(stream); /* it may fail, and still end the capture; or there was none */
    CUresult result = driver()->end_capture(stream, graph);
    if (before && !hook_stream_captures(stream)) {
        graph_capture_ends();
        graph_captured();
    }
    return result;
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return cuStreamEndCapture(thread_stream(stream), graph);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
    CUresult result = driver()->instantiate(made, graph, flags);
    if (result == CUDA_SUCCESS && client_kind(NULL) >= 0) graph_instantiated(*made);
    return result;
}
