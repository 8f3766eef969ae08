#include "admission/partition.h"

#include <pthread.h>
#include <stdio.h>

#include "driver/driver.h"

enum { SIZES = 8 };

typedef struct partition_stream {
    uint32_t sms;
    CUstream stream; /* NULL: it could not be made */
    CUevent before, after;
} partition_stream;

static partition_stream partitions[SIZES];
static int partition_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int made_stream(partition_stream *partition) {
    const driver_table *real = driver();
    CUdevResource all = {0}, some = {0};
    CUdevResourceDesc description;
    CUgreenCtx context;
    CUdevice device;
    unsigned groups = 1;
    return real->green_create && real->context_device(&device) == CUDA_SUCCESS &&
           real->device_resource(device, &all, CU_DEV_RESOURCE_SM) == CUDA_SUCCESS &&
           real->split_sms(&some, &groups, &all, NULL, 0, partition->sms) == CUDA_SUCCESS &&
           real->describe_resource(&description, &some, 1) == CUDA_SUCCESS &&
           real->green_create(&context, description, device, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS &&
           real->green_stream(&partition->stream, context, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS;
}

static int made_events(partition_stream *partition) {
    const driver_table *real = driver();
    return real->event_create(&partition->before, CU_EVENT_NO_TIMING) == CUDA_SUCCESS &&
           real->event_create(&partition->after, CU_EVENT_NO_TIMING) == CUDA_SUCCESS;
}

static partition_stream *partition_of(uint32_t sms) {
    for (int index = 0; index < partition_count; index++)
        if (partitions[index].sms == sms) return &partitions[index];
    if (partition_count == SIZES) return NULL;
    partition_stream *partition = &partitions[partition_count++];
    partition->sms = sms;
    if (!made_stream(partition) || !made_events(partition)) {
        partition->stream = NULL;
        fprintf(stderr, "astrarium gate: no partition of %u SMs can be made; long kernels use all of them\n", sms);
    }
    return partition;
}

static int after_stream(const launch *made, const partition_stream *partition) {
    const driver_table *real = driver();
    return real->event_record(partition->before, made->stream) == CUDA_SUCCESS &&
           real->stream_wait_event(partition->stream, partition->before, 0) == CUDA_SUCCESS;
}

static int before_stream(const launch *made, const partition_stream *partition) {
    const driver_table *real = driver();
    return real->event_record(partition->after, partition->stream) == CUDA_SUCCESS &&
           real->stream_wait_event(made->stream, partition->after, 0) == CUDA_SUCCESS;
}

/* A kernel that cannot run there (a cluster too large, say) runs where it was meant to, now and ever after. */
static CUresult ordered(const launch *made, const partition_stream *partition) {
    if (!after_stream(made, partition) || made->submit(made, partition->stream) != CUDA_SUCCESS) {
        made->kernel->rigid = 1;
        return made->submit(made, made->stream);
    }
    if (!before_stream(made, partition)) driver()->stream_synchronize(partition->stream);
    return CUDA_SUCCESS;
}

CUresult partition_launch(const launch *made, uint32_t sms) {
    pthread_mutex_lock(&lock);
    const partition_stream *partition = partition_of(sms);
    CUresult result = partition && partition->stream ? ordered(made, partition) : made->submit(made, made->stream);
    pthread_mutex_unlock(&lock);
    return result;
}
