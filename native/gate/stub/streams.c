/* Streams, their queues, and the virtual clock. */
#include <stdlib.h>
#include <string.h>

#include "stub.h"

int stub_is_automatic = 1;
uint64_t stub_now;
uint64_t stub_done[STUB_KINDS];
uint64_t stub_stale_count;

static CUstream streams; /* all of them */
static CUstream legacy;
static _Thread_local CUstream own;

/* ---- which stream is meant */

CUstream stub_stream_new(unsigned flags, int priority, unsigned sms) {
    CUstream stream = calloc(1, sizeof *stream);
    *stream = (struct stub_stream){
        .magic = STREAM_MAGIC, .next = streams, .flags = flags, .priority = priority, .sms = sms};
    return streams = stream;
}

CUresult stub_stream_of(CUstream stream, CUstream *found) {
    CUresult error = stub_ready();
    if (error) return error;
    if (stream == STREAM_PER_THREAD)
        *found = own = own ? own : stub_stream_new(0, 0, STUB_SMS);
    else if (!stream || stream == STREAM_LEGACY)
        *found = legacy = legacy ? legacy : stub_stream_new(0, 0, STUB_SMS);
    else
        *found = stream;
    if (IS(*found, STREAM_MAGIC)) return CUDA_SUCCESS;
    stub_stale_count++;
    return CUDA_ERROR_INVALID_HANDLE;
}

/* ---- queues */

void stub_append(stub_queue *queue, stub_work work) {
    stub_work *entry = malloc(sizeof *entry);
    *entry = work;
    entry->next = NULL;
    if (queue->last)
        queue->last->next = entry;
    else
        queue->first = entry;
    queue->last = entry;
}

static void drop_first(stub_queue *queue) {
    stub_work *gone = queue->first;
    queue->first = gone->next;
    if (!queue->first) queue->last = NULL;
    free(gone);
}

/* ---- doing it */

static int takes_time(const stub_work *work) { return work->kind <= STUB_COPY; }

static int fenced(CUstream stream) {
    const stub_work *first = stream->queue.first;
    return first->kind == STUB_FENCE && !stub_fence_open(first);
}

static int blocked(CUstream stream) {
    const stub_work *first = stream->queue.first;
    return fenced(stream) || (first->kind == STUB_WAIT && !stub_event_happened(first));
}

static uint64_t end_of_first(CUstream stream) {
    const stub_work *first = stream->queue.first;
    uint64_t start = first->queued > stream->clock ? first->queued : stream->clock;
    if (first->kind == STUB_WAIT && first->event->time > start) start = first->event->time;
    return start + first->duration;
}

void stub_perform(const stub_work *work) {
    stub_done[work->kind]++;
    if (work->kind == STUB_KERNEL) work->function->runs++;
    if (work->kind == STUB_GRAPH) stub_perform_nodes(work->graph);
    if (work->kind == STUB_COPY) memmove(work->to, work->from, work->bytes);
    if (work->kind == STUB_WRITE) __atomic_store_n((uint32_t *)work->to, work->value, __ATOMIC_RELEASE);
}

static void run_first(CUstream stream) {
    stream->clock = end_of_first(stream);
    if (stream->clock > stub_now) stub_now = stream->clock;
    stub_work work = *stream->queue.first;
    drop_first(&stream->queue);
    if (work.kind == STUB_RECORD && work.record > work.event->done) {
        work.event->done = work.record;
        work.event->time = stream->clock;
    }
    stub_perform(&work);
}

/* The first of the queue, after what it waits for: another stream, or somebody who opens a fence. */
void stub_step(CUstream stream) {
    if (fenced(stream)) return stub_let_others();
    if (blocked(stream)) stub_finish(stream->queue.first->event->stream);
    if (stream->queue.first && !blocked(stream)) run_first(stream);
}

void stub_finish(CUstream stream) {
    while (stream->queue.first) stub_step(stream);
}

void stub_finish_all(void) {
    for (CUstream stream = streams; stream; stream = stream->next) stub_finish(stream);
}

/* So many kernels, graphs and copies of the stream, with the marks and waits that follow each. */
int stub_run_some(CUstream stream, int count) {
    int done = 0;
    while (stream->queue.first && !blocked(stream)) {
        int counts = takes_time(stream->queue.first);
        if (counts && done == count) break;
        run_first(stream);
        done += counts;
    }
    return done;
}

int stub_run_entries(CUstream stream, int count) {
    int done = 0;
    for (; done < count && stream->queue.first && !blocked(stream); done++) run_first(stream);
    return done;
}

static void run_what_ends_by(const uint64_t *time) {
    for (int progress = 1; progress;) {
        progress = 0;
        for (CUstream stream = streams; stream; stream = stream->next)
            while (stream->queue.first && !blocked(stream) && end_of_first(stream) <= *time)
                run_first(stream), progress = 1;
    }
}

/* Whatever has ended by now, on any stream. */
void stub_run_until_now(void) { run_what_ends_by(&stub_now); }

void stub_run_what_can(void) {
    static const uint64_t ever = UINT64_MAX;
    run_what_ends_by(&ever);
}

void stub_leave_capture(const stub_capture *capture) {
    for (CUstream stream = streams; stream; stream = stream->next)
        if (stream->capture == capture) stream->capture = NULL;
}

/* ---- work comes */

CUresult stub_submit(CUstream stream, stub_work work) {
    if (stream->capture) {
        if (stream->capture->broken) return CUDA_ERROR_CAPTURE_INVALIDATED;
        stub_append(&stream->capture->nodes, work);
        return CUDA_SUCCESS;
    }
    work.queued = stub_now;
    stub_append(&stream->queue, work);
    if (stub_is_automatic) stub_run_what_can();
    return CUDA_SUCCESS;
}

/* ---- the driver's calls */

static CUresult create(const char *call, CUstream *stream, unsigned flags, int priority) {
    NOTE(call, flags, (uint64_t)(int64_t)priority);
    CUresult error = stub_ready();
    if (!error) *stream = stub_stream_new(flags, priority, stub_current()->sms);
    return error;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
    LOCKED(create("cuStreamCreate", stream, flags, 0));
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    LOCKED(create("cuStreamCreateWithPriority", stream, flags, priority));
}

/* A stream that captures can be neither waited for nor asked. */
static CUresult may_look(CUstream stream, CUstream *found) {
    CUresult error = stub_stream_of(stream, found);
    if (error) return error;
    if (!(*found)->capture) return stub_unsafe_call();
    (*found)->capture->broken = 1;
    return CUDA_ERROR_CAPTURE_UNSUPPORTED;
}

static CUresult do_cuStreamSynchronize(const char *call, CUstream stream) {
    NOTE(call, NUMBER(stream));
    CUstream found;
    CUresult error = may_look(stream, &found);
    if (!error) stub_finish(found);
    return error;
}
TWINS(cuStreamSynchronize, _ptsz, (CUstream stream), stream)

static CUresult do_cuStreamQuery(const char *call, CUstream stream) {
    NOTE(call, NUMBER(stream));
    CUstream found;
    CUresult error = may_look(stream, &found);
    return error ? error : found->queue.first ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}
TWINS(cuStreamQuery, _ptsz, (CUstream stream), stream)

static CUresult do_cuStreamGetPriority(const char *call, CUstream stream, int *priority) {
    NOTE(call, NUMBER(stream));
    CUstream found;
    CUresult error = stub_stream_of(stream, &found);
    if (!error) *priority = found->priority;
    return error;
}
TWINS(cuStreamGetPriority, _ptsz, (CUstream stream, int *priority), stream, priority)

EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    stub_lock();
    NOTE("cuStreamDestroy_v2", NUMBER(stream));
    int known = IS(stream, STREAM_MAGIC);
    if (known) stub_finish(stream); /* the handle stays in memory: a stale one is noticed */
    if (known) stream->magic = 0;
    stub_unlock();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
