/* The functions of the driver that the gate takes the place of: programs find them by name, since the library goes by
 * the driver's name, or ask cuGetProcAddress for them. Names that end in _ptsz or _ptds mean the calling thread's own
 * stream where no stream is given. */
#ifndef ASTRARIUM_GATE_HOOKS_H
#define ASTRARIUM_GATE_HOOKS_H

#include "driver/driver.h"

#define EXPORT __attribute__((visibility("default")))

/* name in the driver and here, arguments; all return CUresult */
#define HOOKS(X)                                                                                      \
    X(cuLaunchKernel, (CUfunction, DIMENSIONS, unsigned, CUstream, void **, void **))                 \
    X(cuLaunchKernel_ptsz, (CUfunction, DIMENSIONS, unsigned, CUstream, void **, void **))            \
    X(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))                       \
    X(cuLaunchKernelEx_ptsz, (const CUlaunchConfig *, CUfunction, void **, void **))                  \
    X(cuLaunchCooperativeKernel, (CUfunction, DIMENSIONS, unsigned, CUstream, void **))               \
    X(cuLaunchCooperativeKernel_ptsz, (CUfunction, DIMENSIONS, unsigned, CUstream, void **))          \
    X(cuGraphLaunch, (CUgraphExec, CUstream))                                                         \
    X(cuGraphLaunch_ptsz, (CUgraphExec, CUstream))                                                    \
    X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                            \
    X(cuMemcpyHtoDAsync_v2_ptsz, (CUdeviceptr, const void *, size_t, CUstream))                       \
    X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                  \
    X(cuMemcpyDtoHAsync_v2_ptsz, (void *, CUdeviceptr, size_t, CUstream))                             \
    X(cuStreamSynchronize, (CUstream))                                                                \
    X(cuStreamSynchronize_ptsz, (CUstream))                                                           \
    X(cuEventSynchronize, (CUevent))                                                                  \
    X(cuCtxSynchronize, (void))                                                                       \
    X(cuCtxSynchronize_v2, (CUcontext))                                                               \
    X(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                                                 \
    X(cuMemcpyDtoH_v2_ptds, (void *, CUdeviceptr, size_t))                                            \
    X(cuStreamBeginCapture_v2, (CUstream, int))                                                       \
    X(cuStreamBeginCapture_v2_ptsz, (CUstream, int))                                                  \
    X(cuStreamBeginCaptureToGraph, (CUstream, CUgraph, const void *, const void *, size_t, int))      \
    X(cuStreamBeginCaptureToGraph_ptsz, (CUstream, CUgraph, const void *, const void *, size_t, int)) \
    X(cuStreamEndCapture, (CUstream, CUgraph *))                                                      \
    X(cuStreamEndCapture_ptsz, (CUstream, CUgraph *))                                                 \
    X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                      \
    X(cuStreamCreate, (CUstream *, unsigned))                                                         \
    X(cuStreamCreateWithPriority, (CUstream *, unsigned, int))                                        \
    X(cuStreamDestroy_v2, (CUstream))                                                                 \
    X(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))                                      \
    X(cuLibraryEnumerateKernels, (CUkernel *, unsigned, CUlibrary))                                   \
    X(cuGetProcAddress, (const char *, void **, int, uint64_t))                                       \
    X(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *))

#define X(name, arguments) EXPORT CUresult name arguments;
HOOKS(X)
#undef X

static inline CUstream thread_stream(CUstream stream) {
    return stream ? stream : (CUstream)(uintptr_t)CU_PER_THREAD_STREAM;
}

#endif
