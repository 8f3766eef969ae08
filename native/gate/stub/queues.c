/* The device: queues of streams, what is done when their turn comes, the virtual clock, and the lock around it all. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "stub.h"

int stub_is_automatic = 1;
uint64_t stub_now;
uint64_t stub_done[STUB_KINDS];

static CUstream streams; /* all of them */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* For a moment. */
static void let_others(void) {
    const struct timespec moment = {.tv_nsec = 100 * 1000L};
    pthread_mutex_unlock(&lock);
    nanosleep(&moment, NULL);
    pthread_mutex_lock(&lock);
}

CUstream stub_stream_new(unsigned flags, int priority, unsigned sms) {
    CUstream stream = calloc(1, sizeof *stream);
    *stream =
        (struct stub_stream){.magic = STREAM_MAGIC, .next = streams, .flags = flags, .priority = priority, .sms = sms};
    streams = stream;
    return stream;
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

static int happened(const stub_work *wait) { return wait->event->done >= wait->record; }

/* The stream goes on when the word is as told: at least the value, equal, some of its bits, or not all ones. */
static int fence_open(const stub_work *fence) {
    uint32_t word = __atomic_load_n((const uint32_t *)fence->from, __ATOMIC_ACQUIRE);
    switch (fence->flags & 3) {
        case 0: return (int32_t)(word - fence->value) >= 0;
        case 1: return word == fence->value;
        case 2: return (word & fence->value) != 0;
        default: return ~(word | fence->value) != 0;
    }
}

static int fenced(CUstream stream) {
    const stub_work *first = stream->queue.first;
    return first->kind == STUB_FENCE && !fence_open(first);
}

static int blocked(CUstream stream) {
    const stub_work *first = stream->queue.first;
    return fenced(stream) || (first->kind == STUB_WAIT && !happened(first));
}

static uint64_t end_of_first(CUstream stream) {
    const stub_work *first = stream->queue.first;
    uint64_t start = first->queued > stream->clock ? first->queued : stream->clock;
    if (first->kind == STUB_WAIT && first->event->time > start) start = first->event->time;
    return start + first->duration;
}

static void perform(const stub_work *work);

/* Records and waits inside a graph are its edges, nothing that happens. */
static void perform_nodes(CUgraph graph) {
    for (const stub_work *node = graph->nodes.first; node; node = node->next)
        if (node->kind <= STUB_WRITE) perform(node);
}

static void perform(const stub_work *work) {
    stub_done[work->kind]++;
    if (work->kind == STUB_KERNEL) work->function->runs++;
    if (work->kind == STUB_GRAPH) perform_nodes(work->graph);
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
    perform(&work);
}

/* The first of the queue, after what it waits for: another stream, or somebody who opens a fence. */
void stub_step(CUstream stream) {
    if (fenced(stream)) {
        let_others();
        return;
    }
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
            while (stream->queue.first && !blocked(stream) && end_of_first(stream) <= *time) {
                run_first(stream);
                progress = 1;
            }
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

/* ---- the lock */

void stub_lock(void) {
    pthread_mutex_lock(&lock);
    if (stub_is_automatic) stub_run_what_can();
}

void stub_unlock(void) { pthread_mutex_unlock(&lock); }
