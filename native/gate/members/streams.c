#include "members/streams.h"

#include "board/atomics.h"
#include "board/tracks.h"
#include "members/board_on_gpu.h"

/* A handle that means "my own" in every thread is told apart by a variable that every thread has its own of. */
static uint64_t key_of(CUstream handle) {
    static _Thread_local char mine;
    if ((uintptr_t)handle == CU_PER_THREAD_STREAM) return (uint64_t)(uintptr_t)&mine | 1ull << 63;
    return (uint64_t)(uintptr_t)handle + 1;
}

static const uint64_t FENCE_FIRST = 1ull << 62; /* ns: a stream's first launch has a fence before it */

static member_stream *with_key(member *me, uint64_t key) {
    for (int index = 0; index < me->streams_used; index++)
        if (LOAD(me->streams[index].key) == key) return &me->streams[index];
    return NULL;
}

member_stream *stream_known(member *me, CUstream handle) { return with_key(me, key_of(handle)); }

static member_stream *made(member *me, CUstream handle, uint64_t key) {
    for (int index = 0; index < GATE_TRACKS; index++) {
        member_stream *stream = &me->streams[index];
        if (stream->key) continue;
        stream->handle = handle;
        stream->owner = pthread_self();
        stream->per_thread = (uintptr_t)handle == CU_PER_THREAD_STREAM;
        stream->track = gate_track_take(me->client, index);
        stream->unfenced_ns = FENCE_FIRST;
        STORE(stream->key, key);
        if (index >= me->streams_used) STORE(me->streams_used, index + 1);
        return stream;
    }
    return NULL;
}

member_stream *stream_of(member *me, CUstream handle) {
    uint64_t key = key_of(handle);
    member_stream *stream = with_key(me, key);
    if (stream) return stream;
    pthread_mutex_lock(&me->lock);
    stream = with_key(me, key);
    if (!stream) stream = made(me, handle, key);
    pthread_mutex_unlock(&me->lock);
    return stream;
}

void stream_ends(member *me, CUstream handle) {
    member_stream *stream = stream_known(me, handle);
    if (!stream) return;
    stream_mark(stream);
    pthread_mutex_lock(&me->lock);
    stream->timed = 0;
    stream->unmarked_ns = 0;
    stream->unfenced_ns = 0;
    if (me->fence_on == handle) me->fence_told = 0;
    STORE(stream->key, 0);
    pthread_mutex_unlock(&me->lock);
}

/* the GPU's reports */

static int reachable(const member_stream *stream) {
    return !stream->per_thread || pthread_equal(stream->owner, pthread_self());
}

static void tell_to_report(member_stream *stream, uint32_t upto) {
    stream->track->marked = upto;
    if (gpu_write(stream->handle, &stream->track->completed, upto)) return;
    /* Nobody is to wait for what is not reported. */
    STORE(stream->track->completed, upto);
}

void stream_mark(member_stream *stream) {
    uint32_t upto = stream->track->launched;
    if (stream->track->marked != upto && reachable(stream)) tell_to_report(stream, upto);
}

void streams_report(member *me) {
    for (int index = 0; index < me->streams_used; index++) {
        member_stream *stream = &me->streams[index];
        if (stream->key && reachable(stream)) tell_to_report(stream, stream->track->launched);
    }
}

void streams_mark(member *me) {
    for (int index = 0; index < me->streams_used; index++)
        if (me->streams[index].key) stream_mark(&me->streams[index]);
}
