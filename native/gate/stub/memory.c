/* Memory and copies. Device pointers are host pointers; a copy moves bytes when its turn in the stream comes. */
#include <stdlib.h>
#include <string.h>

#include "stub.h"

enum { RANGES = 4096 };

uint64_t stub_copy_bytes_per_us = 50000;

/* ---- what the device may touch: its own memory, and host memory that was registered */

static struct range {
    CUdeviceptr at;
    size_t bytes;
    int host;
} ranges[RANGES];

static struct range *range_of(CUdeviceptr at) {
    for (int index = 0; index < RANGES; index++)
        if (ranges[index].bytes && at >= ranges[index].at && at < ranges[index].at + ranges[index].bytes)
            return &ranges[index];
    return NULL;
}

static int device_may_write(CUdeviceptr at, size_t bytes) {
    const struct range *range = range_of(at);
    return range && at + bytes <= range->at + range->bytes;
}

static CUresult add_range(CUdeviceptr at, size_t bytes, int host) {
    for (int index = 0; index < RANGES; index++) {
        if (ranges[index].bytes) continue;
        ranges[index] = (struct range){at, bytes, host};
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate(CUdeviceptr *at, size_t bytes) {
    NOTE("cuMemAlloc_v2", bytes);
    CUresult error = stub_ready();
    if (!error) error = stub_unsafe_call();
    if (error || !bytes) return error ? error : CUDA_ERROR_INVALID_VALUE;
    *at = NUMBER(calloc(1, bytes));
    return *at ? add_range(*at, bytes, 0) : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t bytes) { LOCKED(allocate(at, bytes)); }

static CUresult release(CUdeviceptr at) {
    NOTE("cuMemFree_v2", at);
    struct range *range = range_of(at);
    if (!range || range->at != at || range->host) return CUDA_ERROR_INVALID_VALUE;
    CUresult error = stub_unsafe_call();
    if (error) return error;
    stub_finish_all(); /* as the real one: nobody uses it any more */
    free((void *)(uintptr_t)at);
    range->bytes = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr at) { LOCKED(release(at)); }

static CUresult register_host(void *at, size_t bytes, unsigned flags) {
    NOTE("cuMemHostRegister_v2", NUMBER(at), bytes, flags);
    CUresult error = stub_ready();
    if (!error) error = stub_unsafe_call();
    if (error || !at || !bytes) return error ? error : CUDA_ERROR_INVALID_VALUE;
    return range_of(NUMBER(at)) ? CUDA_ERROR_ALREADY_REGISTERED : add_range(NUMBER(at), bytes, 1);
}

EXPORT CUresult cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags) {
    LOCKED(register_host(at, bytes, flags));
}

static CUresult unregister_host(void *at) {
    NOTE("cuMemHostUnregister", NUMBER(at));
    struct range *range = range_of(NUMBER(at));
    if (!range || range->at != NUMBER(at) || !range->host) return CUDA_ERROR_NOT_REGISTERED;
    range->bytes = 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostUnregister(void *at) { LOCKED(unregister_host(at)); }

static CUresult device_pointer(CUdeviceptr *device, void *at, unsigned flags) {
    NOTE("cuMemHostGetDevicePointer_v2", NUMBER(at), flags);
    if (!range_of(NUMBER(at))) return CUDA_ERROR_INVALID_VALUE;
    *device = NUMBER(at);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *at, unsigned flags) {
    LOCKED(device_pointer(device, at, flags));
}

/* ---- a word in stream order */

static CUresult do_cuStreamWriteValue32_v2(const char *call, CUstream stream, CUdeviceptr at, uint32_t value,
                                           unsigned flags) {
    NOTE(call, NUMBER(stream), at, value, flags);
    CUstream found;
    CUresult error = stub_stream_of(stream, &found);
    if (error || !device_may_write(at, 4)) return error ? error : CUDA_ERROR_INVALID_VALUE;
    return stub_submit(found, (stub_work){.kind = STUB_WRITE, .to = (void *)(uintptr_t)at, .value = value});
}
TWINS(cuStreamWriteValue32_v2, _ptsz, (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags), stream, at,
      value, flags)

static CUresult do_cuStreamWaitValue32_v2(const char *call, CUstream stream, CUdeviceptr at, uint32_t value,
                                          unsigned flags) {
    NOTE(call, NUMBER(stream), at, value, flags);
    CUstream found;
    CUresult error = stub_stream_of(stream, &found);
    if (error || !device_may_write(at, 4)) return error ? error : CUDA_ERROR_INVALID_VALUE;
    stub_work fence = {.kind = STUB_FENCE, .from = (void *)(uintptr_t)at, .value = value, .flags = flags};
    return stub_submit(found, fence);
}
TWINS(cuStreamWaitValue32_v2, _ptsz, (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags), stream, at,
      value, flags)

/* ---- copies */

static CUresult copy(const char *call, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    NOTE(call, to, from, bytes, NUMBER(stream));
    CUstream found;
    CUresult error = stub_stream_of(stream, &found);
    if (error) return error;
    return stub_submit(found, (stub_work){.kind = STUB_COPY,
                                          .to = (void *)(uintptr_t)to,
                                          .from = (const void *)(uintptr_t)from,
                                          .bytes = bytes,
                                          .duration = bytes * 1000 / stub_copy_bytes_per_us});
}

static CUresult do_cuMemcpyAsync(const char *call, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(call, to, from, bytes, stream);
}
TWINS(cuMemcpyAsync, _ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes, stream)

static CUresult do_cuMemcpyHtoDAsync_v2(const char *call, CUdeviceptr to, const void *from, size_t bytes,
                                        CUstream stream) {
    return copy(call, to, NUMBER(from), bytes, stream);
}
TWINS(cuMemcpyHtoDAsync_v2, _ptsz, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), to, from, bytes,
      stream)

static CUresult do_cuMemcpyDtoHAsync_v2(const char *call, void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(call, NUMBER(to), from, bytes, stream);
}
TWINS(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), to, from, bytes, stream)

/* Those that wait go through the default stream, of all or of the thread. */
static CUresult copy_and_wait(const char *call, CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    CUstream found;
    CUresult error = stub_unsafe_call();
    if (!error) error = copy(call, to, from, bytes, stream);
    if (!error && !stub_stream_of(stream, &found)) stub_finish(found);
    return error;
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    LOCKED(copy_and_wait("cuMemcpyDtoH_v2", NUMBER(to), from, bytes, STREAM_LEGACY));
}

EXPORT CUresult cuMemcpyDtoH_v2_ptds(void *to, CUdeviceptr from, size_t bytes) {
    LOCKED(copy_and_wait("cuMemcpyDtoH_v2_ptds", NUMBER(to), from, bytes, STREAM_PER_THREAD));
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    LOCKED(copy_and_wait("cuMemcpyHtoD_v2", to, NUMBER(from), bytes, STREAM_LEGACY));
}

EXPORT CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr to, const void *from, size_t bytes) {
    LOCKED(copy_and_wait("cuMemcpyHtoD_v2_ptds", to, NUMBER(from), bytes, STREAM_PER_THREAD));
}
