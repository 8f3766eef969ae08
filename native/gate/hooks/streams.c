/* Streams are made with a priority under a policy that says so, and end. */
#include "admission/admission.h"
#include "admission/boundaries.h"
#include "hooks/captures.h"
#include "hooks/hooks.h"
#include "kernels/graphs.h"

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
    if (graph_capturing() && hook_stream_captures(stream))
        graph_capture_ends();
    else if (!graph_capturing())
        client_stream_ends(stream);
    return driver()->stream_destroy(stream);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    return driver()->stream_create_priority(stream, flags, priority_for(priority));
}
