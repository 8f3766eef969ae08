/* The driver's calls that make streams, wait for them, ask them, and end them. */
#include "stub.h"

static CUresult create(const char *call, CUstream *stream, unsigned flags, int priority) {
    NOTE(call, flags, (uint64_t)(int64_t)priority);
    CUresult error = stub_ready();
    if (!error) *stream = stub_stream_new(flags, priority, stub_current()->sms);
    return error;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) { LOCKED(create("cuStreamCreate", stream, flags, 0)); }

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    LOCKED(create("cuStreamCreateWithPriority", stream, flags, priority));
}

/* A stream that captures can be neither waited for nor asked. */
static CUresult may_look(CUstream stream, CUstream *found) {
    CUresult error = stub_stream_of(stream, found);
    if (error) return error;
    if (!(*found)->capture) return stub_unsafe_call();
    (*found)->capture->broken = 1;
    return CUDA_ERROR_CAPTURE_UNSUPPORTED;
}

static CUresult do_cuStreamSynchronize(const char *call, CUstream stream) {
    NOTE(call, NUMBER(stream));
    CUstream found;
    CUresult error = may_look(stream, &found);
    if (!error) stub_finish(found);
    return error;
}
TWINS(cuStreamSynchronize, _ptsz, (CUstream stream), stream)

static CUresult do_cuStreamQuery(const char *call, CUstream stream) {
    NOTE(call, NUMBER(stream));
    CUstream found;
    CUresult error = may_look(stream, &found);
    return error ? error : found->queue.first ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
TWINS(cuStreamQuery, _ptsz, (CUstream stream), stream)

static CUresult do_cuStreamGetPriority(const char *call, CUstream stream, int *priority) {
    NOTE(call, NUMBER(stream));
    CUstream found;
    CUresult error = stub_stream_of(stream, &found);
    if (!error) *priority = found->priority;
    return error;
}
TWINS(cuStreamGetPriority, _ptsz, (CUstream stream, int *priority), stream, priority)

static CUresult synchronize(void) {
    NOTE("cuCtxSynchronize", 0);
    CUresult error = stub_ready();
    if (!error) error = stub_unsafe_call();
    if (!error) stub_finish_all();
    return error;
}

EXPORT CUresult cuCtxSynchronize(void) { LOCKED(synchronize()); }
EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) {
    (void)context; /* there is one */
    LOCKED(synchronize());
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    stub_lock();
    NOTE("cuStreamDestroy_v2", NUMBER(stream));
    int known = IS(stream, STREAM_MAGIC);
    if (known) stub_finish(stream); /* the handle stays in memory: a stale one is noticed */
    if (known) stream->magic = 0;
    stub_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
