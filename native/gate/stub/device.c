/* The device, contexts, and green contexts: parts of its SMs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stub.h"

enum { DRIVER_VERSION = 13000, ATTRIBUTE_SMS = 16, RESOURCE_SM = 1, LEAST_PARTITION = 8 };
static const char *const NAME = "Stub GPU";

static int initialized;
static struct stub_context primary = {.magic = CONTEXT_MAGIC, .sms = STUB_SMS};
static _Thread_local CUcontext current;

CUresult stub_ready(void) {
    if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
    return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUcontext stub_current(void) { return current; }

static CUresult about(CUdevice device) {
    return !initialized ? CUDA_ERROR_NOT_INITIALIZED : device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

/* ---- the device */

EXPORT CUresult cuInit(unsigned flags) {
    stub_lock();
    NOTE("cuInit", flags);
    initialized = 1;
    stub_unlock();
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return about(0);
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return about(ordinal);
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    CUresult error = about(device);
    if (!error) snprintf(name, (size_t)length, "%s", NAME);
    return error;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    CUresult error = about(device);
    if (!error && attribute != ATTRIBUTE_SMS) return CUDA_ERROR_INVALID_VALUE;
    if (!error) *value = STUB_SMS;
    return error;
}

/* ---- contexts: each thread says which one it uses */

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = &primary;
    return about(device);
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current;
    return initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    if (!initialized) return CUDA_ERROR_NOT_INITIALIZED;
    if (context && !IS(context, CONTEXT_MAGIC)) return CUDA_ERROR_INVALID_CONTEXT;
    current = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    *device = 0;
    return stub_ready();
}

/* As an H200: 0 is the least. */
EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -3;
    return stub_ready();
}

/* ---- green contexts */

struct stub_resource_list {
    unsigned sms;
};

static void describe(CUdevResource *resource, unsigned sms) {
    memset(resource, 0, sizeof *resource);
    resource->type = RESOURCE_SM;
    resource->sm.smCount = sms;
    resource->sm.minSmPartitionSize = resource->sm.smCoscheduledAlignment = LEAST_PARTITION;
}

EXPORT CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, unsigned type) {
    CUresult error = about(device);
    if (error || type != RESOURCE_SM) return error ? error : CUDA_ERROR_INVALID_VALUE;
    describe(resource, STUB_SMS);
    return CUDA_SUCCESS;
}

/* Groups of `least` SMs, rounded up to what can be split off; NULL for `groups` asks how many there would be. */
EXPORT CUresult cuDevSmResourceSplitByCount(CUdevResource *groups, unsigned *count, const CUdevResource *whole,
                                            CUdevResource *rest, unsigned flags, unsigned least) {
    if (flags || !count || whole->type != RESOURCE_SM) return CUDA_ERROR_INVALID_VALUE;
    unsigned each = least ? (least + LEAST_PARTITION - 1) / LEAST_PARTITION * LEAST_PARTITION : LEAST_PARTITION;
    unsigned fitting = whole->sm.smCount / each;
    if (!fitting) return CUDA_ERROR_INVALID_VALUE;
    *count = !groups || *count > fitting ? fitting : *count;
    for (unsigned index = 0; groups && index < *count; index++) describe(&groups[index], each);
    if (rest) describe(rest, whole->sm.smCount - each * *count);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *list, CUdevResource *resources, unsigned count) {
    *list = calloc(1, sizeof **list);
    for (unsigned index = 0; index < count; index++) (*list)->sms += resources[index].sm.smCount;
    return (*list)->sms ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc list, CUdevice device, unsigned flags) {
    stub_lock();
    NOTE("cuGreenCtxCreate", list->sms, flags);
    stub_unlock();
    CUresult error = about(device);
    if (error || flags != 1) return error ? error : CUDA_ERROR_INVALID_VALUE; /* 1: with a default stream */
    *context = calloc(1, sizeof **context);
    **context = (struct stub_context){.magic = CONTEXT_MAGIC, .sms = list->sms};
    return CUDA_SUCCESS;
}

static CUresult create_stream(CUstream *stream, CUgreenCtx context, unsigned flags, int priority) {
    NOTE("cuGreenCtxStreamCreate", NUMBER(context), flags, (uint64_t)(int64_t)priority);
    if (!IS(context, CONTEXT_MAGIC)) return CUDA_ERROR_INVALID_CONTEXT;
    if (flags != STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    *stream = stub_stream_new(flags, priority, context->sms);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx context, unsigned flags, int priority) {
    LOCKED(create_stream(stream, context, flags, priority));
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green) {
    *context = green;
    return IS(green, CONTEXT_MAGIC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
