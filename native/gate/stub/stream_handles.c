/* Which stream a handle means: some are everybody's, or the calling thread's. */
#include "stub.h"

uint64_t stub_stale_count;

static CUstream legacy;
static _Thread_local CUstream own;

static CUstream made_once(CUstream *stream) {
    if (!*stream) *stream = stub_stream_new(0, 0, STUB_SMS);
    return *stream;
}

CUresult stub_stream_of(CUstream stream, CUstream *found) {
    CUresult error = stub_ready();
    if (error) return error;
    if (stream == STREAM_PER_THREAD)
        *found = made_once(&own);
    else if (!stream || stream == STREAM_LEGACY)
        *found = made_once(&legacy);
    else
        *found = stream;
    if (IS(*found, STREAM_MAGIC)) return CUDA_SUCCESS;
    stub_stale_count++;
    return CUDA_ERROR_INVALID_HANDLE;
}
