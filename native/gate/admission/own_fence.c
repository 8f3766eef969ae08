#include "admission/own_fence.h"

#include "board/atomics.h"
#include "board/reads.h"
#include "board/tracks.h"
#include "driver/driver.h"
#include "members/board_on_gpu.h"
#include "members/streams.h"
#include "sharing/pacing.h"

/* Whether the GPU is still to open the fence for an earlier request. With one stream it opens it before it
 * reports that request; our own stream reports for itself. */
static int about_to_open(const member *me) {
    uint32_t written = LOAD(me->client->fences_passed);
    return me->closed && me->fence_told && (gate_client_running(me->client) || written != me->fences_written);
}

/* Where an earlier request is about to open it, it is closed again behind it. */
void own_fence_close(member *me) {
    const gate_board *board = members_board();
    if (!gate_policy_fences(gate_board_policy(board)) || gate_board_paced(board) || !me->client->can_fence) return;
    int again = about_to_open(me);
    STORE(me->client->open, 0);
    me->closed = 1;
    if (again) gpu_write(me->fence_on, &me->client->open, 0);
}

static int own_stream(member *me) {
    if (!me->fence_stream) driver()->stream_create_priority(&me->fence_stream, CU_STREAM_NON_BLOCKING, 0);
    return me->fence_stream != NULL;
}

/* Our own stream waits for what this one has launched. */
static int awaited(member *me, member_stream *stream) {
    const driver_table *real = driver();
    if (!stream->after && real->event_create(&stream->after, CU_EVENT_NO_TIMING) != CUDA_SUCCESS) return 0;
    return real->event_record(stream->after, stream->handle) == CUDA_SUCCESS &&
           real->stream_wait_event(me->fence_stream, stream->after, 0) == CUDA_SUCCESS;
}

/* It waits for all that are at work: one may have been the only stream when its request began. Streams that only
 * their own thread can reach were awaited by it. */
static int gathered(member *me) {
    int all = 1;
    for (int index = 0; all && index < me->streams_used; index++) {
        member_stream *stream = &me->streams[index];
        if (stream->key && !stream->per_thread && gate_track_in_flight(stream->track)) all = awaited(me, stream);
    }
    return all;
}

static void cannot_fence(member *me) {
    STORE(me->client->can_fence, 0); /* from now on others hold their launches */
    STORE(me->client->open, 1);
    me->closed = 0;
}

static void open_through_own_stream(member *me) {
    me->fence_on = me->fence_stream;
    me->fence_told = 1;
    int opened = gpu_write(me->fence_stream, &me->client->open, 1);
    if (!opened || !gpu_write(me->fence_stream, &me->client->fences_passed, ++me->fences_written)) cannot_fence(me);
}

void own_fence_open(member *me, member_stream *stream) {
    if (!me->closed) return;
    if (streams_only_one(me)) {
        me->fence_on = stream->handle;
        me->fence_told = 1;
        if (!gpu_write(stream->handle, &me->client->open, 1)) cannot_fence(me);
    } else if (!own_stream(me) || !awaited(me, stream)) {
        cannot_fence(me);
    } else if (me->requests_open == 0 && gathered(me)) {
        open_through_own_stream(me);
    }
}
