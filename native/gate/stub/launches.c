/* Kernels: their handles, what they need of an SM, and the ways to launch them. */
#include <stdlib.h>
#include <string.h>

#include "stub.h"

/* ---- handles: a CUfunction belongs to a context, a CUkernel to a library. Launches take either. */

static int launchable(CUfunction function) { return IS(function, FUNCTION_MAGIC); }
static int is_function(CUfunction function) { return launchable(function) && !function->library; }
static int is_kernel(CUkernel kernel) { return launchable(kernel) && kernel->library; }

static CUresult name_of(const char *call, const char **name, CUfunction function, int right) {
    NOTE(call, NUMBER(function));
    if (!right) return CUDA_ERROR_INVALID_HANDLE;
    *name = function->name;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetName(const char **name, CUfunction function) {
    LOCKED(name_of("cuFuncGetName", name, function, is_function(function)));
}

EXPORT CUresult cuKernelGetName(const char **name, CUkernel kernel) {
    LOCKED(name_of("cuKernelGetName", name, kernel, is_kernel(kernel)));
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    stub_lock();
    NOTE("cuKernelGetFunction", NUMBER(kernel));
    int right = is_kernel(kernel);
    if (right) *function = kernel->function;
    stub_unlock();
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult attribute_of(const char *call, int *value, int attribute, CUfunction function, int right) {
    NOTE(call, (uint64_t)attribute, NUMBER(function));
    if (!right) return CUDA_ERROR_INVALID_HANDLE;
    const int values[] = {[0] = function->threads, [1] = function->shared, [4] = function->registers};
    if (attribute < 0 || attribute > 4) return CUDA_ERROR_INVALID_VALUE;
    *value = values[attribute];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function) {
    LOCKED(attribute_of("cuFuncGetAttribute", value, attribute, function, is_function(function)));
}

EXPORT CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device) {
    (void)device;
    LOCKED(attribute_of("cuKernelGetAttribute", value, attribute, kernel, is_kernel(kernel)));
}

/* ---- libraries */

static CUresult find_kernel(CUkernel *kernel, CUlibrary library, const char *name) {
    NOTE("cuLibraryGetKernel", NUMBER(library));
    if (!IS(library, LIBRARY_MAGIC)) return CUDA_ERROR_INVALID_HANDLE;
    for (*kernel = library->kernels; *kernel; *kernel = (*kernel)->next)
        if (strcmp((*kernel)->name, name) == 0) return CUDA_SUCCESS;
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
    LOCKED(find_kernel(kernel, library, name));
}

static CUresult list_kernels(CUkernel *kernels, unsigned capacity, CUlibrary library) {
    NOTE("cuLibraryEnumerateKernels", capacity, NUMBER(library));
    if (!IS(library, LIBRARY_MAGIC)) return CUDA_ERROR_INVALID_HANDLE;
    for (CUkernel kernel = library->kernels; kernel && capacity; kernel = kernel->next, capacity--) *kernels++ = kernel;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned capacity, CUlibrary library) {
    LOCKED(list_kernels(kernels, capacity, library));
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary library) {
    *count = IS(library, LIBRARY_MAGIC) ? library->count : 0;
    return IS(library, LIBRARY_MAGIC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- occupancy: an SM of compute capability 9.0 */

enum { SM_THREADS = 2048, SM_REGISTERS = 65536, SM_SHARED = 233472, SM_BLOCKS = 32, BLOCK_SHARED_OVERHEAD = 1024 };

static int least(int one, int other) { return one < other ? one : other; }

static CUresult occupancy(int *blocks, CUfunction function, int threads, size_t shared) {
    NOTE("cuOccupancyMaxActiveBlocksPerMultiprocessor", NUMBER(function), (uint64_t)threads, shared);
    if (!launchable(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (threads <= 0) return CUDA_ERROR_INVALID_VALUE;
    int registers = function->registers * threads;
    int bytes = function->shared + (int)shared + BLOCK_SHARED_OVERHEAD;
    int fitting = least(SM_BLOCKS, SM_THREADS / threads);
    if (registers) fitting = least(fitting, SM_REGISTERS / registers);
    *blocks = threads > function->threads ? 0 : least(fitting, SM_SHARED / bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                            size_t shared) {
    LOCKED(occupancy(blocks, function, threads, shared));
}

/* ---- launches */

static CUresult launch(const char *call, CUfunction function, const unsigned *shape, CUstream stream) {
    NOTE(call, NUMBER(function), shape[0], shape[1], shape[2], shape[3], shape[4], shape[5], shape[6], NUMBER(stream));
    CUstream found;
    CUresult error = stub_stream_of(stream, &found);
    if (error || !launchable(function)) return error ? error : CUDA_ERROR_INVALID_HANDLE;
    for (int dimension = 0; dimension < 6; dimension++)
        if (!shape[dimension]) return CUDA_ERROR_INVALID_VALUE;
    if (!found->capture) stub_remember_launch(function);
    return stub_submit(found, (stub_work){.kind = STUB_KERNEL, .function = function, .duration = function->duration});
}

static CUresult do_cuLaunchKernel(const char *call, CUfunction function, const unsigned *shape, CUstream stream) {
    return launch(call, function, shape, stream);
}
TWINS(cuLaunchKernel, _ptsz,
      (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
       unsigned shared, CUstream stream, void **arguments, void **extra),
      ((void)arguments, (void)extra, function), (const unsigned[]){gx, gy, gz, bx, by, bz, shared}, stream)

static CUresult do_cuLaunchCooperativeKernel(const char *call, CUfunction function, const unsigned *shape,
                                             CUstream stream) {
    return launch(call, function, shape, stream);
}
TWINS(cuLaunchCooperativeKernel, _ptsz,
      (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
       unsigned shared, CUstream stream, void **arguments),
      ((void)arguments, function), (const unsigned[]){gx, gy, gz, bx, by, bz, shared}, stream)

/* The stream lies in the configuration, so the twin is written out. */
EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
    (void)arguments;
    (void)extra;
    LOCKED(launch("cuLaunchKernelEx", function, &config->gridDimX, config->hStream));
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **arguments,
                                      void **extra) {
    (void)arguments;
    (void)extra;
    CUstream stream = config->hStream ? config->hStream : STREAM_PER_THREAD;
    LOCKED(launch("cuLaunchKernelEx_ptsz", function, &config->gridDimX, stream));
}
