#include "admission/requests.h"

#include "admission/own_fence.h"
#include "board/atomics.h"
#include "board/reads.h"
#include "board/tracks.h"
#include "driver/driver.h"
#include "kernels/measure.h"
#include "sharing/lessons.h"

enum { FORGOTTEN_NS = 20 * 1000 * 1000 };

static int events_made(member_stream *stream) {
    const driver_table *real = driver();
    if (!stream->begin && real->event_create(&stream->begin, 0) != CUDA_SUCCESS) return 0;
    return stream->end || real->event_create(&stream->end, 0) == CUDA_SUCCESS;
}

static void learn(member *me, member_stream *stream, uint64_t took) {
    gate_board_request_ended(members_board(), me->place, took, stream->launches);
    uint64_t alone = gate_client_alone(me->client);
    if (stream->graph)
        stream->graph->work.duration = alone;
    else
        me->alone = alone;
}

static void harvest(member *me, member_stream *stream) {
    uint64_t took = stream->timed && !stream->open ? measure_between(stream->begin, stream->end) : 0;
    if (!took) return;
    stream->timed = 0;
    learn(me, stream, took);
}

/* A stream that nobody waits for, such as that of a few launches before a capture, does not keep a request open
 * for ever. What still runs on it is waited for all the same. */
static void close_forgotten(member *me) {
    uint64_t now = members_about_now();
    for (int index = 0; index < me->streams_used; index++) {
        member_stream *stream = &me->streams[index];
        if (!stream->open || now < stream->touched + FORGOTTEN_NS) continue;
        stream->open = 0;
        stream->timed = 0;
        me->requests_open--;
        stream_mark(stream);
    }
}

static void close_open(member *me, member_stream *stream) {
    if (!stream->open) return;
    stream->open = 0;
    me->requests_open--;
    stream->launches = stream->track->launched - stream->launched_before;
    stream->timed = stream->timed && driver()->event_record(stream->end, stream->handle) == CUDA_SUCCESS;
    if (me->closed && me->requests_open) close_forgotten(me);
    own_fence_open(me, stream);
    stream_mark(stream);
    more(&me->client->counts.requests, 1);
    STORE(me->client->in_request, me->requests_open > 0);
}

/* A request that begins while another still runs cannot tell whose delay it sees: it is not timed. */
static void open_new(member *me, member_stream *stream, kernel *graph) {
    int alone = me->requests_open == 0 && !gate_client_running(me->client);
    own_fence_close(me);
    stream->graph = graph;
    stream->opened_by = pthread_self();
    stream->launched_before = stream->track->launched;
    stream->open = 1;
    me->requests_open++;
    STORE(me->client->in_request, 1);
    gate_board_request_begins(members_board(), me->place, graph ? graph->work.duration : me->alone);
    stream->timed =
        alone && events_made(stream) && driver()->event_record(stream->begin, stream->handle) == CUDA_SUCCESS;
}

void request_begins(member *me, member_stream *stream, kernel *graph) {
    pthread_mutex_lock(&me->lock);
    if (graph) close_open(me, stream);
    if (!stream->open) {
        harvest(me, stream);
        open_new(me, stream, graph);
    }
    pthread_mutex_unlock(&me->lock);
}

void request_closes(member *me, member_stream *stream) {
    pthread_mutex_lock(&me->lock);
    close_open(me, stream);
    pthread_mutex_unlock(&me->lock);
}

static int mine(const member *me, const member_stream *stream) {
    return streams_only_one(me) || pthread_equal(stream->opened_by, pthread_self());
}

void requests_close(member *me, int all) {
    pthread_mutex_lock(&me->lock);
    for (int index = 0; index < me->streams_used; index++)
        if (me->streams[index].open && (all || mine(me, &me->streams[index]))) close_open(me, &me->streams[index]);
    pthread_mutex_unlock(&me->lock);
}

void requests_harvest(member *me) {
    pthread_mutex_lock(&me->lock);
    for (int index = 0; index < me->streams_used; index++) harvest(me, &me->streams[index]);
    pthread_mutex_unlock(&me->lock);
}
