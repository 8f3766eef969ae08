/* The real driver behind us: the functions that the gate calls itself or passes calls on to. */
#ifndef ASTRARIUM_GATE_DRIVER_H
#define ASTRARIUM_GATE_DRIVER_H

#include "driver/cuda_abi.h"

#define DIMENSIONS unsigned, unsigned, unsigned, unsigned, unsigned, unsigned

/* name in the table, symbol in the driver, arguments; all return CUresult */
#define DRIVER_FUNCTIONS(X)                                                                                          \
    X(launch_kernel, "cuLaunchKernel", (CUfunction, DIMENSIONS, unsigned, CUstream, void **, void **))               \
    X(launch_kernel_ex, "cuLaunchKernelEx", (const CUlaunchConfig *, CUfunction, void **, void **))                  \
    X(launch_cooperative, "cuLaunchCooperativeKernel", (CUfunction, DIMENSIONS, unsigned, CUstream, void **))        \
    X(graph_launch, "cuGraphLaunch", (CUgraphExec, CUstream))                                                        \
    X(get_proc_4, "cuGetProcAddress", (const char *, void **, int, uint64_t))                                        \
    X(get_proc_5, "cuGetProcAddress_v2", (const char *, void **, int, uint64_t, int *))                              \
    X(stream_create_priority, "cuStreamCreateWithPriority", (CUstream *, unsigned, int))                             \
    X(priority_range, "cuCtxGetStreamPriorityRange", (int *, int *))                                                 \
    X(stream_synchronize, "cuStreamSynchronize", (CUstream))                                                         \
    X(stream_wait_event, "cuStreamWaitEvent", (CUstream, CUevent, unsigned))                                         \
    X(begin_capture, "cuStreamBeginCapture_v2", (CUstream, int))                                                     \
    X(begin_capture_to, "cuStreamBeginCaptureToGraph", (CUstream, CUgraph, const void *, const void *, size_t, int)) \
    X(end_capture, "cuStreamEndCapture", (CUstream, CUgraph *))                                                      \
    X(instantiate, "cuGraphInstantiateWithFlags", (CUgraphExec *, CUgraph, unsigned long long))                      \
    X(exchange_mode, "cuThreadExchangeStreamCaptureMode", (int *))                                                   \
    X(is_capturing, "cuStreamIsCapturing", (CUstream, int *))                                                        \
    X(stream_destroy, "cuStreamDestroy_v2", (CUstream))                                                              \
    X(write_value, "cuStreamWriteValue32_v2", (CUstream, CUdeviceptr, uint32_t, unsigned))                           \
    X(wait_value, "cuStreamWaitValue32_v2", (CUstream, CUdeviceptr, uint32_t, unsigned))                             \
    X(context_synchronize, "cuCtxSynchronize", (void))                                                               \
    X(this_context_synchronize, "cuCtxSynchronize_v2", (CUcontext))                                                  \
    X(context_device, "cuCtxGetDevice", (CUdevice *))                                                                \
    X(context_current, "cuCtxGetCurrent", (CUcontext *))                                                             \
    X(context_use, "cuCtxSetCurrent", (CUcontext))                                                                   \
    X(device_attribute, "cuDeviceGetAttribute", (int *, int, CUdevice))                                              \
    X(device_name, "cuDeviceGetName", (char *, int, CUdevice))                                                       \
    X(event_create, "cuEventCreate", (CUevent *, unsigned))                                                          \
    X(event_record, "cuEventRecord", (CUevent, CUstream))                                                            \
    X(event_query, "cuEventQuery", (CUevent))                                                                        \
    X(event_synchronize, "cuEventSynchronize", (CUevent))                                                            \
    X(event_elapsed, "cuEventElapsedTime", (float *, CUevent, CUevent))                                              \
    X(host_register, "cuMemHostRegister_v2", (void *, size_t, unsigned))                                             \
    X(host_pointer, "cuMemHostGetDevicePointer_v2", (CUdeviceptr *, void *, unsigned))                               \
    X(copy_in, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void *, size_t, CUstream))                                \
    X(copy_out, "cuMemcpyDtoHAsync_v2", (void *, CUdeviceptr, size_t, CUstream))                                     \
    X(copy_out_now, "cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t))                                                \
    X(copy_out_now_own, "cuMemcpyDtoH_v2_ptds", (void *, CUdeviceptr, size_t))                                       \
    X(function_name, "cuFuncGetName", (const char **, CUfunction))                                                   \
    X(kernel_name, "cuKernelGetName", (const char **, CUkernel))                                                     \
    X(kernel_function, "cuKernelGetFunction", (CUfunction *, CUkernel))                                              \
    X(library_kernel, "cuLibraryGetKernel", (CUkernel *, CUlibrary, const char *))                                   \
    X(library_kernels, "cuLibraryEnumerateKernels", (CUkernel *, unsigned, CUlibrary))                               \
    X(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", (int *, CUfunction, int, size_t))                    \
    X(device_resource, "cuDeviceGetDevResource", (CUdevice, CUdevResource *, int))                                   \
    X(split_sms, "cuDevSmResourceSplitByCount",                                                                      \
      (CUdevResource *, unsigned *, const CUdevResource *, CUdevResource *, unsigned, unsigned))                     \
    X(describe_resource, "cuDevResourceGenerateDesc", (CUdevResourceDesc *, CUdevResource *, unsigned))              \
    X(green_create, "cuGreenCtxCreate", (CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned))                       \
    X(green_stream, "cuGreenCtxStreamCreate", (CUstream *, CUgreenCtx, unsigned, int))

typedef struct driver_table {
#define X(name, symbol, arguments) CUresult(*name) arguments;
    DRIVER_FUNCTIONS(X)
#undef X
} driver_table;

/* A function that the driver does not have is NULL. */
const driver_table *driver(void);
/* Any symbol of the real driver. */
void *driver_symbol(const char *name);

#endif
