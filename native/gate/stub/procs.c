/* cuGetProcAddress: functions by name, by the version that the caller was built for, and by its default stream. */
#include <string.h>

#include "stub.h"

enum { FOUND, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT };
enum { PER_THREAD_DEFAULT_STREAM = 2 };

/* name, first version, what it is then called; TWO has a twin for the thread's own default stream besides. */
#define FUNCTIONS(ONE, TWO)                                                                             \
    ONE(cuInit, 2000, cuInit)                                                                           \
    ONE(cuDriverGetVersion, 2020, cuDriverGetVersion)                                                   \
    ONE(cuGetProcAddress, 11030, cuGetProcAddress)                                                      \
    ONE(cuGetProcAddress, 12000, cuGetProcAddress_v2)                                                   \
    ONE(cuDeviceGetCount, 2000, cuDeviceGetCount)                                                       \
    ONE(cuDeviceGet, 2000, cuDeviceGet)                                                                 \
    ONE(cuDeviceGetName, 2000, cuDeviceGetName)                                                         \
    ONE(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute)                                               \
    ONE(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain)                                       \
    ONE(cuCtxGetCurrent, 4000, cuCtxGetCurrent)                                                         \
    ONE(cuCtxSetCurrent, 4000, cuCtxSetCurrent)                                                         \
    ONE(cuCtxGetDevice, 2000, cuCtxGetDevice)                                                           \
    ONE(cuCtxSynchronize, 2000, cuCtxSynchronize)                                                       \
    ONE(cuCtxSynchronize, 13000, cuCtxSynchronize_v2)                                                   \
    ONE(cuCtxFromGreenCtx, 12040, cuCtxFromGreenCtx)                                                    \
    ONE(cuDeviceGetDevResource, 12040, cuDeviceGetDevResource)                                          \
    ONE(cuDevSmResourceSplitByCount, 12040, cuDevSmResourceSplitByCount)                                \
    ONE(cuDevResourceGenerateDesc, 12040, cuDevResourceGenerateDesc)                                    \
    ONE(cuGreenCtxCreate, 12040, cuGreenCtxCreate)                                                      \
    ONE(cuGreenCtxStreamCreate, 12050, cuGreenCtxStreamCreate)                                          \
    ONE(cuThreadExchangeStreamCaptureMode, 10010, cuThreadExchangeStreamCaptureMode)                    \
    ONE(cuStreamCreate, 2000, cuStreamCreate)                                                           \
    ONE(cuStreamCreateWithPriority, 5050, cuStreamCreateWithPriority)                                   \
    ONE(cuStreamDestroy, 4000, cuStreamDestroy_v2)                                                      \
    TWO(cuStreamGetPriority, 5050, cuStreamGetPriority, _ptsz)                                          \
    TWO(cuStreamSynchronize, 2000, cuStreamSynchronize, _ptsz)                                          \
    TWO(cuStreamQuery, 2000, cuStreamQuery, _ptsz)                                                      \
    TWO(cuStreamWaitEvent, 3020, cuStreamWaitEvent, _ptsz)                                              \
    TWO(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2, _ptsz)                                    \
    TWO(cuStreamEndCapture, 10000, cuStreamEndCapture, _ptsz)                                           \
    TWO(cuStreamIsCapturing, 10000, cuStreamIsCapturing, _ptsz)                                         \
    TWO(cuStreamWaitValue32, 11070, cuStreamWaitValue32_v2, _ptsz)                                      \
    TWO(cuStreamWriteValue32, 11070, cuStreamWriteValue32_v2, _ptsz)                                    \
    ONE(cuEventCreate, 2000, cuEventCreate)                                                             \
    ONE(cuEventDestroy, 4000, cuEventDestroy_v2)                                                        \
    ONE(cuEventQuery, 2000, cuEventQuery)                                                               \
    ONE(cuEventSynchronize, 2000, cuEventSynchronize)                                                   \
    ONE(cuEventElapsedTime, 2000, cuEventElapsedTime)                                                   \
    ONE(cuEventElapsedTime, 12080, cuEventElapsedTime_v2)                                               \
    TWO(cuEventRecord, 2000, cuEventRecord, _ptsz)                                                      \
    TWO(cuEventRecordWithFlags, 11010, cuEventRecordWithFlags, _ptsz)                                   \
    TWO(cuLaunchKernel, 4000, cuLaunchKernel, _ptsz)                                                    \
    TWO(cuLaunchKernelEx, 11060, cuLaunchKernelEx, _ptsz)                                               \
    TWO(cuLaunchCooperativeKernel, 9000, cuLaunchCooperativeKernel, _ptsz)                              \
    TWO(cuGraphLaunch, 10000, cuGraphLaunch, _ptsz)                                                     \
    ONE(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags)                                \
    ONE(cuGraphExecDestroy, 10000, cuGraphExecDestroy)                                                  \
    ONE(cuGraphDestroy, 10000, cuGraphDestroy)                                                          \
    ONE(cuFuncGetName, 12030, cuFuncGetName)                                                            \
    ONE(cuFuncGetAttribute, 2020, cuFuncGetAttribute)                                                   \
    ONE(cuKernelGetName, 12030, cuKernelGetName)                                                        \
    ONE(cuKernelGetFunction, 12000, cuKernelGetFunction)                                                \
    ONE(cuKernelGetAttribute, 12000, cuKernelGetAttribute)                                              \
    ONE(cuLibraryGetKernel, 12000, cuLibraryGetKernel)                                                  \
    ONE(cuLibraryEnumerateKernels, 12040, cuLibraryEnumerateKernels)                                    \
    ONE(cuLibraryGetKernelCount, 12040, cuLibraryGetKernelCount)                                        \
    ONE(cuCtxGetStreamPriorityRange, 5050, cuCtxGetStreamPriorityRange)                                 \
    ONE(cuOccupancyMaxActiveBlocksPerMultiprocessor, 6050, cuOccupancyMaxActiveBlocksPerMultiprocessor) \
    ONE(cuMemAlloc, 3020, cuMemAlloc_v2)                                                                \
    ONE(cuMemFree, 3020, cuMemFree_v2)                                                                  \
    ONE(cuMemHostRegister, 6050, cuMemHostRegister_v2)                                                  \
    ONE(cuMemHostUnregister, 4000, cuMemHostUnregister)                                                 \
    ONE(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2)                                  \
    TWO(cuMemcpyAsync, 4000, cuMemcpyAsync, _ptsz)                                                      \
    TWO(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2, _ptsz)                                           \
    TWO(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2, _ptsz)                                           \
    TWO(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2, _ptds)                                                     \
    TWO(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2, _ptds)

/* Only their addresses are needed here. */
#define DECLARE_ONE(name, since, function) extern CUresult function();
#define DECLARE_TWO(name, since, function, suffix) extern CUresult function(), function##suffix();
FUNCTIONS(DECLARE_ONE, DECLARE_TWO)

typedef CUresult any_function();

#define ROW_ONE(name, since, function) {#name, since, function, function},
#define ROW_TWO(name, since, function, suffix) {#name, since, function, function##suffix},
static const struct row {
    const char *name;
    int since;
    any_function *plain, *twin;
} rows[] = {FUNCTIONS(ROW_ONE, ROW_TWO)};

/* The newest at or below the version: rows of one name are in the order of their versions. */
static int find(const char *symbol, int version, const struct row **newest) {
    int status = SYMBOL_NOT_FOUND;
    for (size_t index = 0; index < sizeof rows / sizeof *rows; index++) {
        if (strcmp(rows[index].name, symbol) != 0) continue;
        if (rows[index].since > version) {
            if (status == SYMBOL_NOT_FOUND) status = VERSION_NOT_SUFFICIENT;
            continue;
        }
        *newest = &rows[index];
        status = FOUND;
    }
    return status;
}

static CUresult get(const char *call, const char *symbol, void **pointer, int version, uint64_t flags, int *status) {
    NOTE(call, (uint64_t)version, flags);
    if (!symbol || !pointer) return CUDA_ERROR_INVALID_VALUE;
    const struct row *row = NULL;
    int answer = find(symbol, version, &row);
    if (status) *status = answer;
    *pointer = NULL;
    if (answer != FOUND) return CUDA_ERROR_NOT_FOUND;
    any_function *function = flags & PER_THREAD_DEFAULT_STREAM ? row->twin : row->plain;
    memcpy((void *)pointer, (const void *)&function, sizeof function);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **pointer, int version, uint64_t flags) {
    LOCKED(get("cuGetProcAddress", symbol, pointer, version, flags, NULL));
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **pointer, int version, uint64_t flags, int *status) {
    LOCKED(get("cuGetProcAddress_v2", symbol, pointer, version, flags, status));
}
