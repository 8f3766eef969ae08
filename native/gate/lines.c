#include "lines.h"

#include <stdio.h>
#include <string.h>

#include "driver.h"

/* A handle that means "my own" in every thread is told apart by a variable that every thread has its own of. */
static uint64_t key_of(CUstream stream) {
    static _Thread_local char mine;
    if ((uintptr_t)stream == CU_PER_THREAD_STREAM) return (uint64_t)(uintptr_t)&mine | 1ull << 63;
    return (uint64_t)(uintptr_t)stream + 1;
}

static const uint64_t FENCE_FIRST = 1ull << 62; /* ns: a stream's first launch has a fence before it */

static line *found(member *of, uint64_t key) {
    for (int index = 0; index < of->lines_used; index++)
        if (__atomic_load_n(&of->lines[index].key, __ATOMIC_ACQUIRE) == key) return &of->lines[index];
    return NULL;
}

line *line_known(member *of, CUstream stream) { return found(of, key_of(stream)); }

static line *made(member *of, CUstream stream, uint64_t key) {
    for (int index = 0; index < GATE_TRACKS; index++) {
        line *one = &of->lines[index];
        if (one->key) continue;
        one->stream = stream;
        one->owner = pthread_self();
        one->per_thread = (uintptr_t)stream == CU_PER_THREAD_STREAM;
        one->track = gate_track_take(of->client, index);
        one->unfenced_ns = FENCE_FIRST;
        __atomic_store_n(&one->key, key, __ATOMIC_RELEASE);
        if (index >= of->lines_used) __atomic_store_n(&of->lines_used, index + 1, __ATOMIC_RELEASE);
        return one;
    }
    return NULL;
}

line *line_of(member *of, CUstream stream) {
    uint64_t key = key_of(stream);
    line *one = found(of, key);
    if (one) return one;
    pthread_mutex_lock(&of->lock);
    one = found(of, key);
    if (!one) one = made(of, stream, key);
    pthread_mutex_unlock(&of->lock);
    return one;
}

void lines_stream_ends(member *of, CUstream stream) {
    line *one = line_known(of, stream);
    if (!one) return;
    line_mark(one);
    pthread_mutex_lock(&of->lock);
    one->timed = 0;
    one->unmarked_ns = one->unfenced_ns = 0;
    if (of->fence_on == stream) of->fence_told = 0;
    __atomic_store_n(&one->key, 0, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&of->lock);
}

/* the GPU's part */

int line_write(CUstream stream, const uint32_t *word, uint32_t value) {
    CUdeviceptr at = members_on_gpu(word);
    return at && driver()->write_value(stream, at, value, 0) == CUDA_SUCCESS;
}

int line_await(CUstream stream, const uint32_t *word, uint32_t value, unsigned how) {
    CUdeviceptr at = members_on_gpu(word);
    return at && driver()->wait_value && driver()->wait_value(stream, at, value, how) == CUDA_SUCCESS;
}

static int reachable(const line *on) { return !on->per_thread || pthread_equal(on->owner, pthread_self()); }

static void tell_to_report(line *on, uint32_t upto) {
    on->track->marked = upto;
    if (line_write(on->stream, &on->track->completed, upto)) return;
    __atomic_store_n(&on->track->completed, upto, __ATOMIC_RELEASE); /* nobody is to wait for what is not reported */
}

void line_mark(line *on) {
    uint32_t upto = on->track->launched;
    if (on->track->marked != upto && reachable(on)) tell_to_report(on, upto);
}

void lines_report(member *of) {
    for (int index = 0; index < of->lines_used; index++) {
        line *on = &of->lines[index];
        if (on->key && reachable(on)) tell_to_report(on, on->track->launched);
    }
}

void lines_mark(member *of) {
    for (int index = 0; index < of->lines_used; index++)
        if (of->lines[index].key) line_mark(&of->lines[index]);
}
