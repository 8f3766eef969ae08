#include "requests.h"

#include "driver.h"
#include "measure.h"
#include "reads.h"

enum { FORGOTTEN_NS = 20 * 1000 * 1000 };

static int events_made(line *on) {
    const driver_table *real = driver();
    if (!on->begin && real->event_create(&on->begin, 0) != CUDA_SUCCESS) return 0;
    return on->end || real->event_create(&on->end, 0) == CUDA_SUCCESS;
}

static void learn(member *of, line *on, uint64_t took) {
    gate_board_request_ended(members_board(), of->place, took, on->launches);
    uint64_t alone = gate_client_alone(of->client);
    if (on->graph)
        on->graph->work.duration = alone;
    else
        of->alone = alone;
}

static void harvest(member *of, line *on) {
    uint64_t took = on->timed && !on->open ? measure_between(on->begin, on->end) : 0;
    if (!took) return;
    on->timed = 0;
    learn(of, on, took);
}

/* fences */

static int one_stream(const member *of) { return of->lines_used == 1; }

/* Whether the GPU is still to open the fence for an earlier request. With one stream it opens it before it
 * reports that request; our own stream reports for itself. */
static int about_to_open(const member *of) {
    uint32_t written = __atomic_load_n(&of->client->fences_passed, __ATOMIC_ACQUIRE);
    return of->closed && of->fence_told && (gate_client_running(of->client) || written != of->fences_written);
}

/* From now on best effort stops at its fences. Where an earlier request is about to open them, they are closed
 * again behind it. */
static void close_fences(member *of) {
    const gate_board *board = members_board();
    if (!gate_policy_fences(gate_board_policy(board)) || gate_board_paced(board) || !of->client->can_fence) return;
    int again = about_to_open(of);
    __atomic_store_n(&of->client->open, 0, __ATOMIC_RELEASE);
    of->closed = 1;
    if (again) line_write(of->fence_on, &of->client->open, 0);
}

static int own_stream(member *of) {
    if (!of->fence_stream) driver()->stream_create_priority(&of->fence_stream, CU_STREAM_NON_BLOCKING, 0);
    return of->fence_stream != NULL;
}

/* Our own stream waits for what this one has launched. */
static int awaited(member *of, line *on) {
    const driver_table *real = driver();
    if (!on->after && real->event_create(&on->after, CU_EVENT_NO_TIMING) != CUDA_SUCCESS) return 0;
    return real->event_record(on->after, on->stream) == CUDA_SUCCESS &&
           real->stream_wait_event(of->fence_stream, on->after, 0) == CUDA_SUCCESS;
}

/* It waits for all that are at work: one may have been the only stream when its request began. Streams that only
 * their own thread can reach were awaited by it. */
static int gathered(member *of) {
    int all = 1;
    for (int index = 0; all && index < of->lines_used; index++) {
        line *on = &of->lines[index];
        if (on->key && !on->per_thread && gate_track_in_flight(on->track)) all = awaited(of, on);
    }
    return all;
}

static void cannot_fence(member *of) {
    __atomic_store_n(&of->client->can_fence, 0, __ATOMIC_RELEASE); /* from now on others hold their launches */
    __atomic_store_n(&of->client->open, 1, __ATOMIC_RELEASE);
    of->closed = 0;
}

static void open_through_own_stream(member *of) {
    of->fence_on = of->fence_stream;
    of->fence_told = 1;
    int opened = line_write(of->fence_stream, &of->client->open, 1);
    if (!opened || !line_write(of->fence_stream, &of->client->fences_passed, ++of->fences_written)) cannot_fence(of);
}

/* A stream that nobody waits for, such as that of a few launches before a capture, does not keep a request open
 * for ever. What still runs on it is waited for all the same. */
static void close_forgotten(member *of) {
    uint64_t now = members_about_now();
    for (int index = 0; index < of->lines_used; index++) {
        line *on = &of->lines[index];
        if (!on->open || now < on->touched + FORGOTTEN_NS) continue;
        on->open = on->timed = 0;
        of->requests_open--;
        line_mark(on);
    }
}

/* With one stream the GPU opens it there. With several, when it is through with all of them. */
static void open_fences(member *of, line *on) {
    if (!of->closed) return;
    if (of->requests_open) close_forgotten(of);
    if (one_stream(of)) {
        of->fence_on = on->stream;
        of->fence_told = 1;
        if (!line_write(on->stream, &of->client->open, 1)) cannot_fence(of);
    } else if (!own_stream(of) || !awaited(of, on)) {
        cannot_fence(of);
    } else if (of->requests_open == 0 && gathered(of)) {
        open_through_own_stream(of);
    }
}

/* requests */

static void close_open(member *of, line *on) {
    if (!on->open) return;
    on->open = 0;
    of->requests_open--;
    on->launches = on->track->launched - on->launched_before;
    on->timed = on->timed && driver()->event_record(on->end, on->stream) == CUDA_SUCCESS;
    open_fences(of, on);
    line_mark(on);
    __atomic_add_fetch(&of->client->counts.requests, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&of->client->in_request, of->requests_open > 0, __ATOMIC_RELEASE);
}

/* A request that begins while another still runs cannot tell whose delay it sees: it is not timed. */
static void open_new(member *of, line *on, kernel *graph) {
    int alone = of->requests_open == 0 && !gate_client_running(of->client);
    close_fences(of);
    on->graph = graph;
    on->opened_by = pthread_self();
    on->launched_before = on->track->launched;
    on->open = 1;
    of->requests_open++;
    __atomic_store_n(&of->client->in_request, 1, __ATOMIC_RELEASE);
    gate_board_request_begins(members_board(), of->place, graph ? graph->work.duration : of->alone);
    on->timed = alone && events_made(on) && driver()->event_record(on->begin, on->stream) == CUDA_SUCCESS;
}

void request_begins(member *of, line *on, kernel *graph) {
    pthread_mutex_lock(&of->lock);
    if (graph) close_open(of, on);
    if (!on->open) {
        harvest(of, on);
        open_new(of, on, graph);
    }
    pthread_mutex_unlock(&of->lock);
}

void request_closes(member *of, line *on) {
    pthread_mutex_lock(&of->lock);
    close_open(of, on);
    pthread_mutex_unlock(&of->lock);
}

static int mine(const member *of, const line *on) {
    return one_stream(of) || pthread_equal(on->opened_by, pthread_self());
}

void requests_close(member *of, int all) {
    pthread_mutex_lock(&of->lock);
    for (int index = 0; index < of->lines_used; index++)
        if (of->lines[index].open && (all || mine(of, &of->lines[index]))) close_open(of, &of->lines[index]);
    pthread_mutex_unlock(&of->lock);
}

void requests_harvest(member *of) {
    pthread_mutex_lock(&of->lock);
    for (int index = 0; index < of->lines_used; index++) harvest(of, &of->lines[index]);
    pthread_mutex_unlock(&of->lock);
}
