#include "admission/best_effort.h"

#include "admission/hold.h"
#include "admission/partition.h"
#include "board/atomics.h"
#include "board/reads.h"
#include "board/tracks.h"
#include "kernels/graphs.h"
#include "members/board_on_gpu.h"
#include "members/streams.h"
#include "sharing/fences.h"
#include "sharing/lessons.h"

enum { LONG_WINDOWS = 4 };
enum { MARK_EVERY = 8, FENCED_MARK_EVERY = 32 }; /* launches; both below GATE_TRAIL */
static const uint64_t UNKNOWN_NS = 50 * 1000ull; /* what a kernel that was never measured is taken to need */

static int too_long(const gate_board *board, const member *me, const launch *made) {
    if (!me->company || !made->kernel || made->kernel->rigid) return 0;
    uint64_t given = gate_board_long_kernel(board);
    uint64_t bound = given ? given : LONG_WINDOWS * gate_board_window(board);
    return gate_board_policy(board) == GATE_ASTRARIUM && !made->rigid && made->sort == LAUNCH_KERNEL &&
           made->work.duration >= bound && kernel_context_free(made->kernel->handle);
}

static CUresult placed(const gate_board *board, const member *me, const launch *made) {
    uint32_t partition = gate_board_partition(board);
    if (!partition || !too_long(board, me, made)) return launch_submit(made, GATE_BEST_EFFORT);
    more(&me->client->counts.partitioned, 1);
    return partition_launch(made, partition);
}

static void charge(gate_board *board, const member *me, const launch *made) {
    more(&me->client->counts.beside, 1);
    gate_board_charge(board, members_now(), made->work.kind, made->work.duration);
}

/* Peers of a collective kernel wait for it on other GPUs: holding it would hold them, and two such could wait
 * for each other for ever. */
static int passes(const gate_board *board, const launch *made) {
    return !gate_policy_tracks(gate_board_policy(board)) || (made->kernel && made->kernel->collective);
}

/* Where everybody else is behind a fence there is nobody to ask. */
static int only_fenced(const gate_board *board, const member *me) {
    return gate_policy_fences(gate_board_policy(board)) && me->client->can_fence && !members_mixed() &&
           !gate_board_holds(board);
}

/* Often enough that a full window is seen to empty in steps, seldom enough to cost nothing. Who only stops at
 * fences is not waited for: he shows that he is alive. */
static void report(const gate_board *board, const member *me, member_stream *stream, uint64_t expected) {
    stream->unmarked_ns += expected;
    uint32_t unmarked = stream->track->launched - stream->track->marked;
    int few = unmarked < MARK_EVERY && expected && stream->unmarked_ns < gate_board_window(board) / 4;
    if (few || (unmarked < FENCED_MARK_EVERY && only_fenced(board, me))) return;
    stream_mark(stream);
    stream->unmarked_ns = 0;
}

/* Before the GPU goes on here, no latency client of another process may be at work. */
static uint64_t fences_before(gate_board *board, member *me, CUstream handle, uint64_t number) {
    uint64_t made = 0, now = members_about_now();
    for (uint32_t index = 0, places = gate_board_places(board); index < places; index++) {
        gate_client *other = &board->clients[index];
        if (!gate_board_asked(board, me->place, other, now, number)) continue;
        if (gpu_await(handle, &other->open, 1, CU_STREAM_WAIT_VALUE_AND))
            made++;
        else
            STORE(me->client->can_fence, 0); /* from now on we are held */
    }
    return made;
}

static void pace(const gate_board *board, member *me, CUstream handle) {
    uint32_t next = me->pacing.paces + 1;
    if (!gate_board_paced(board)) return;
    if (gpu_await(handle, &me->client->permitted, next, CU_STREAM_WAIT_VALUE_GEQ)) STORE(me->pacing.paces, next);
}

/* *stream* is NULL for a stream too many: it has a fence before every launch. */
static void fence(gate_board *board, member *me, member_stream *stream, const launch *made) {
    if (!gate_policy_fences(gate_board_policy(board)) || !me->client->can_fence) return;
    uint64_t expected = made->work.duration ? made->work.duration : UNKNOWN_NS;
    if (stream && !gate_fence_due(gate_board_window(board), stream->unfenced_ns, &made->work)) {
        stream->unfenced_ns += expected;
        return;
    }
    uint64_t fences = fences_before(board, me, made->stream, stream ? stream->fences++ : 0);
    more(&me->client->counts.fences, fences);
    me->company = fences > 0;
    if (fences) pace(board, me, made->stream);
    if (stream) stream->unfenced_ns = expected;
}

static void book(gate_board *board, member *me, member_stream *stream, const launch *made) {
    STORE(me->client->touched, members_about_now());
    me->client->work = made->work;
    STORE(me->client->in_request, 1);
    if (stream) gate_track_launch(stream->track, made->work.duration ? made->work.duration : UNKNOWN_NS);
    hold_ends(board, me);
}

CUresult best_effort_launch(gate_board *board, member *me, launch *made) {
    if (passes(board, made)) return launch_submit(made, GATE_BEST_EFFORT);
    if (made->work.sms > board->most_sms) board->most_sms = made->work.sms;
    if (!only_fenced(board, me) && hold_until_admitted(board, me, &made->work)) charge(board, me, made);
    if (graph_capturing()) {
        hold_ends(board, me);
        return made->submit(made, made->stream);
    }
    member_stream *stream = stream_of(me, made->stream);
    fence(board, me, stream, made);
    book(board, me, stream, made);
    CUresult result = placed(board, me, made);
    if (stream) report(board, me, stream, made->work.duration);
    return result;
}
