#include "partition.h"

#include <pthread.h>
#include <stdio.h>

#include "driver.h"

enum { SIZES = 8 };

typedef struct part {
    uint32_t sms;
    CUstream stream; /* NULL: it could not be made */
    CUevent before, after;
} part;

static part parts[SIZES];
static int part_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int made_stream(part *one) {
    const driver_table *real = driver();
    CUdevResource all = {0}, some = {0};
    CUdevResourceDesc description;
    CUgreenCtx context;
    CUdevice device;
    unsigned groups = 1;
    return real->green_create && real->context_device(&device) == CUDA_SUCCESS &&
           real->device_resource(device, &all, CU_DEV_RESOURCE_SM) == CUDA_SUCCESS &&
           real->split_sms(&some, &groups, &all, NULL, 0, one->sms) == CUDA_SUCCESS &&
           real->describe_resource(&description, &some, 1) == CUDA_SUCCESS &&
           real->green_create(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS &&
           real->green_stream(&one->stream, context, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS;
}

static int made_events(part *one) {
    const driver_table *real = driver();
    return real->event_create(&one->before, CU_EVENT_NO_TIMING) == CUDA_SUCCESS &&
           real->event_create(&one->after, CU_EVENT_NO_TIMING) == CUDA_SUCCESS;
}

static part *part_of(uint32_t sms) {
    for (int index = 0; index < part_count; index++)
        if (parts[index].sms == sms) return &parts[index];
    if (part_count == SIZES) return NULL;
    part *one = &parts[part_count++];
    one->sms = sms;
    if (!made_stream(one) || !made_events(one)) {
        one->stream = NULL;
        fprintf(stderr, "astrarium gate: no partition of %u SMs can be made; long kernels use all of them\n", sms);
    }
    return one;
}

static int after_stream(const launch *made, const part *one) {
    const driver_table *real = driver();
    return real->event_record(one->before, made->stream) == CUDA_SUCCESS &&
           real->stream_wait_event(one->stream, one->before, 0) == CUDA_SUCCESS;
}

static int before_stream(const launch *made, const part *one) {
    const driver_table *real = driver();
    return real->event_record(one->after, one->stream) == CUDA_SUCCESS &&
           real->stream_wait_event(made->stream, one->after, 0) == CUDA_SUCCESS;
}

/* A kernel that cannot run there (a cluster too large, say) runs where it was meant to, now and ever after. */
static CUresult ordered(const launch *made, const part *one) {
    if (!after_stream(made, one) || made->submit(made, one->stream) != CUDA_SUCCESS) {
        made->kernel->rigid = 1;
        return made->submit(made, made->stream);
    }
    if (!before_stream(made, one)) driver()->stream_synchronize(one->stream);
    return CUDA_SUCCESS;
}

CUresult partition_launch(const launch *made, uint32_t sms) {
    pthread_mutex_lock(&lock);
    const part *one = part_of(sms);
    CUresult result = one && one->stream ? ordered(made, one) : made->submit(made, made->stream);
    pthread_mutex_unlock(&lock);
    return result;
}
