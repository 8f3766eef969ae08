/* Events: marks in streams, with a time on the virtual clock. */
#include <stdlib.h>

#include "stub.h"

uint64_t stub_record_ns;

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags) {
    stub_lock();
    NOTE("cuEventCreate", flags);
    CUresult error = stub_ready();
    if (!error) {
        *event = calloc(1, sizeof **event);
        (*event)->magic = EVENT_MAGIC;
        (*event)->flags = flags;
    }
    stub_unlock();
    return error;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    stub_lock();
    NOTE("cuEventDestroy_v2", NUMBER(event));
    int known = IS(event, EVENT_MAGIC);
    if (known) event->magic = 0; /* records of it may still be queued, so its memory stays */
    stub_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static stub_capture *capture_of(CUevent event) {
    return event->capture && !event->capture->ended ? event->capture : NULL;
}

/* ---- in streams */

static CUresult do_cuEventRecordWithFlags(const char *call, CUevent event, CUstream stream, unsigned flags) {
    NOTE(call, NUMBER(event), NUMBER(stream), flags);
    CUstream found;
    CUresult error = stub_stream_of(stream, &found);
    if (error || !IS(event, EVENT_MAGIC)) return error ? error : CUDA_ERROR_INVALID_HANDLE;
    event->capture = found->capture;
    event->stream = found;
    if (!found->capture) event->recorded++;
    return stub_submit(found, (stub_work){.kind = STUB_RECORD,
                                          .event = event,
                                          .record = event->recorded,
                                          .duration = found->capture ? 0 : stub_record_ns});
}
TWINS(cuEventRecordWithFlags, _ptsz, (CUevent event, CUstream stream, unsigned flags), event, stream, flags)

static CUresult do_cuEventRecord(const char *call, CUevent event, CUstream stream) {
    return do_cuEventRecordWithFlags(call, event, stream, 0);
}
TWINS(cuEventRecord, _ptsz, (CUevent event, CUstream stream), event, stream)

/* To wait for an event of a capture is to join that capture. */
static CUresult do_cuStreamWaitEvent(const char *call, CUstream stream, CUevent event, unsigned flags) {
    NOTE(call, NUMBER(stream), NUMBER(event), flags);
    CUstream found;
    CUresult error = stub_stream_of(stream, &found);
    if (error || !IS(event, EVENT_MAGIC)) return error ? error : CUDA_ERROR_INVALID_HANDLE;
    if (capture_of(event) && !found->capture) found->capture = event->capture;
    return stub_submit(found, (stub_work){.kind = STUB_WAIT, .event = event, .record = event->recorded});
}
TWINS(cuStreamWaitEvent, _ptsz, (CUstream stream, CUevent event, unsigned flags), stream, event, flags)

/* ---- from outside */

static CUresult may_look(CUevent event) {
    if (!IS(event, EVENT_MAGIC)) return CUDA_ERROR_INVALID_HANDLE;
    if (!capture_of(event)) return stub_unsafe_call();
    event->capture->broken = 1;
    return CUDA_ERROR_CAPTURE_UNSUPPORTED;
}

static CUresult query(CUevent event) {
    NOTE("cuEventQuery", NUMBER(event));
    CUresult error = may_look(event);
    return error ? error : event->done < event->recorded ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

EXPORT CUresult cuEventQuery(CUevent event) { LOCKED(query(event)); }

static CUresult synchronize(CUevent event) {
    NOTE("cuEventSynchronize", NUMBER(event));
    CUresult error = may_look(event);
    while (!error && event->done < event->recorded) stub_step(event->stream);
    return error;
}

EXPORT CUresult cuEventSynchronize(CUevent event) { LOCKED(synchronize(event)); }

static int timed(CUevent event) {
    return IS(event, EVENT_MAGIC) && event->recorded && !(event->flags & EVENT_DISABLE_TIMING);
}

static CUresult elapsed(const char *call, float *ms, CUevent start, CUevent end) {
    NOTE(call, NUMBER(start), NUMBER(end));
    if (!timed(start) || !timed(end)) return CUDA_ERROR_INVALID_HANDLE;
    if (start->done < start->recorded || end->done < end->recorded) return CUDA_ERROR_NOT_READY;
    *ms = (float)(((double)end->time - (double)start->time) / 1e6);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    LOCKED(elapsed("cuEventElapsedTime", ms, start, end));
}

EXPORT CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end) {
    LOCKED(elapsed("cuEventElapsedTime_v2", ms, start, end));
}
