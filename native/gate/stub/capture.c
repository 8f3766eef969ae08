/* Captures of launches into a graph, and what they forbid. */
#include <stdlib.h>

#include "stub.h"

static CUstream capturing; /* the origin of the latest capture; one at a time is enough here */
static _Thread_local int mode_of_thread = CAPTURE_GLOBAL;

/* ---- what a capture forbids */

/* Calls such as cuMemAlloc or cuEventQuery are forbidden in all threads while a capture in global mode is under
 * way, but for those that have said that they know what they do (relaxed). */
CUresult stub_unsafe_call(void) {
    if (!capturing || capturing->capture->mode != CAPTURE_GLOBAL || mode_of_thread == CAPTURE_RELAXED)
        return CUDA_SUCCESS;
    capturing->capture->broken = 1;
    return CUDA_ERROR_CAPTURE_UNSUPPORTED;
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    int before = mode_of_thread;
    mode_of_thread = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* ---- capture */

static CUresult do_cuStreamBeginCapture_v2(const char *call, CUstream stream, int mode) {
    NOTE(call, NUMBER(stream), (uint64_t)mode);
    CUstream found;
    CUresult error = stub_stream_of(stream, &found);
    int legacy = !stream || stream == STREAM_LEGACY;
    if (error || legacy || found->capture) return error ? error : CUDA_ERROR_CAPTURE_UNSUPPORTED;
    found->capture = calloc(1, sizeof *found->capture);
    found->capture->origin = capturing = found;
    found->capture->mode = mode;
    return CUDA_SUCCESS;
}
TWINS(cuStreamBeginCapture_v2, _ptsz, (CUstream stream, int mode), stream, mode)

static CUresult do_cuStreamEndCapture(const char *call, CUstream stream, CUgraph *graph) {
    NOTE(call, NUMBER(stream));
    CUstream found;
    CUresult error = stub_stream_of(stream, &found);
    stub_capture *capture = error ? NULL : found->capture;
    if (!capture || capture->origin != found) return error ? error : CUDA_ERROR_ILLEGAL_STATE;
    capture->ended = 1; /* events may still name it, so it stays in memory */
    stub_leave_capture(capture);
    capturing = NULL;
    *graph = NULL;
    if (capture->broken) return CUDA_ERROR_CAPTURE_INVALIDATED;
    *graph = calloc(1, sizeof **graph);
    **graph = (struct stub_graph){.magic = GRAPH_MAGIC, .nodes = capture->nodes};
    return CUDA_SUCCESS;
}
TWINS(cuStreamEndCapture, _ptsz, (CUstream stream, CUgraph *graph), stream, graph)

static CUresult do_cuStreamIsCapturing(const char *call, CUstream stream, int *status) {
    NOTE(call, NUMBER(stream));
    CUstream found;
    CUresult error = stub_stream_of(stream, &found);
    if (error) return error;
    int legacy = !stream || stream == STREAM_LEGACY;
    /* The legacy stream would have to wait for the one that captures, unless that never waits for it. */
    if (legacy && capturing && !(capturing->flags & STREAM_NON_BLOCKING)) return CUDA_ERROR_CAPTURE_IMPLICIT;
    *status = !found->capture ? NOT_CAPTURING : found->capture->broken ? CAPTURE_BROKEN : CAPTURING;
    return CUDA_SUCCESS;
}
TWINS(cuStreamIsCapturing, _ptsz, (CUstream stream, int *status), stream, status)
