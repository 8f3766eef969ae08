/* Calls that wait for the GPU: a latency request ends there. */
#include "admission/boundaries.h"
#include "hooks/hooks.h"

#define WAITS(pauses, call)   \
    pauses;                   \
    CUresult result = (call); \
    client_waited();          \
    return result

static CUresult wait_for(CUstream stream) { WAITS(client_pauses_at(stream), driver()->stream_synchronize(stream)); }
EXPORT CUresult cuStreamSynchronize(CUstream stream) { return wait_for(stream); }
EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) { return wait_for(thread_stream(stream)); }
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
