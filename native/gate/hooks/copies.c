/* Copies: large best-effort ones go in pieces, so that a latency client's never wait long. */
#include "admission/admission.h"
#include "hooks/hooks.h"

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
    return copy(&(copy_arguments){to, (uintptr_t)from, bytes}, thread_stream(stream), submit_in);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(&(copy_arguments){(uintptr_t)to, from, bytes}, stream, submit_out);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2_ptsz(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(&(copy_arguments){(uintptr_t)to, from, bytes}, thread_stream(stream), submit_out);
}
