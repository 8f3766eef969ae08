#include "requests.h"

#include "driver.h"
#include "measure.h"

static int events_made(member *of) {
    const driver_table *real = driver();
    if (!of->begin && real->event_create(&of->begin, 0) != CUDA_SUCCESS) return 0;
    return of->end || real->event_create(&of->end, 0) == CUDA_SUCCESS;
}

static void learn(member *of, uint64_t took) {
    gate_board_request_ended(members_board(), of->place, took, of->launches);
    if (of->graph)
        of->graph->work.duration = of->client->alone;
    else
        of->alone = of->client->alone;
}

static void harvest(member *of) {
    uint64_t took = of->timed ? measure_between(of->begin, of->end) : 0;
    if (!took) return;
    of->timed = 0;
    learn(of, took);
}

/* From now on best effort stops at its fences. Where an earlier request is about to open them, they are closed
 * again behind it. */
static void close_fences(member *of, CUstream stream) {
    const gate_board *board = members_board();
    if (!gate_policy_fences(board->knobs.policy) || gate_board_paced(board) || !members_on_gpu()) return;
    int earlier = of->closed && !__atomic_load_n(&of->client->open, __ATOMIC_ACQUIRE);
    __atomic_store_n(&of->client->open, 0, __ATOMIC_RELEASE);
    of->closed = 1;
    if (earlier) members_write_fence(of->client, stream, 0);
}

static void open_fences(member *of) {
    if (!of->closed) return;
    if (!members_write_fence(of->client, of->stream, 1)) __atomic_store_n(&of->client->open, 1, __ATOMIC_RELEASE);
}

static uint32_t launched(const member *of) {
    uint32_t sum = 0;
    for (int index = 0; index < GATE_TRACKS; index++) sum += of->client->tracks[index].launched;
    return sum;
}

static void close_open(member *of) {
    if (!of->open) return;
    of->launches = launched(of) - of->launched_before;
    members_mark_all(of);
    open_fences(of);
    of->open = 0;
    of->timed = of->timed && driver()->event_record(of->end, of->stream) == CUDA_SUCCESS;
    of->client->counts.requests++;
    __atomic_store_n(&of->client->in_request, 0, __ATOMIC_RELEASE);
}

/* A request that begins while the last one still runs cannot tell whose delay it sees: only one is timed. */
static void open_new(member *of, CUstream stream, kernel *graph) {
    of->timed = 0;
    of->stream = stream;
    of->graph = graph;
    close_fences(of, stream);
    gate_board_request_begins(members_board(), of->place, graph ? graph->work.duration : of->alone);
    of->timed = events_made(of) && driver()->event_record(of->begin, stream) == CUDA_SUCCESS;
    of->open = 1;
    of->launched_before = launched(of);
    __atomic_store_n(&of->client->in_request, 1, __ATOMIC_RELEASE);
}

void request_begins(member *of, CUstream stream, kernel *graph) {
    pthread_mutex_lock(&of->lock);
    if (graph) close_open(of);
    if (!of->open) {
        harvest(of);
        open_new(of, stream, graph);
    }
    pthread_mutex_unlock(&of->lock);
}

void request_closes(member *of) {
    pthread_mutex_lock(&of->lock);
    close_open(of);
    pthread_mutex_unlock(&of->lock);
}

void request_harvest(member *of) {
    pthread_mutex_lock(&of->lock);
    if (!of->open) harvest(of);
    pthread_mutex_unlock(&of->lock);
}
