#include "admission/boundaries.h"

#include "admission/gil.h"
#include "admission/hold.h"
#include "admission/requests.h"
#include "board/atomics.h"
#include "board/reads.h"
#include "board/tracks.h"
#include "board/waiting.h"
#include "driver/coverage.h"
#include "kernels/graphs.h"
#include "kernels/measure.h"
#include "kernels/recording.h"

void client_pauses_at(CUstream handle) {
    member *me = graph_capturing() ? NULL : member_here();
    member_stream *stream = me ? stream_known(me, handle) : NULL;
    if (!stream) return;
    if (me->kind == GATE_LATENCY)
        request_closes(me, stream);
    else
        stream_mark(stream);
}

void client_pauses(int everything) {
    member *me = graph_capturing() ? NULL : member_here();
    if (!me) return;
    if (me->kind == GATE_LATENCY)
        requests_close(me, everything);
    else
        streams_mark(me);
}

static void end_for(member *me, CUstream handle) {
    member_stream *stream = stream_known(me, handle);
    if (stream && me->kind == GATE_LATENCY) request_closes(me, stream);
    stream_ends(me, handle);
}

void client_stream_ends(CUstream handle) {
    for (int place = 0; members_board() && place < GATE_CLIENTS; place++)
        if (member_at(place)) end_for(member_at(place), handle);
    members_forget_stream(handle);
}

void client_waited(void) {
    member *me = member_here();
    if (graph_capturing()) return;
    if (me || recording_is_on()) measure_harvest(); /* the best time for it: the GPU has just come so far */
    if (!me) return;
    if (me->kind == GATE_LATENCY)
        requests_harvest(me);
    else
        STORE(me->client->in_request, 0);
    gate_board_changed(members_board());
    coverage_look(members_about_now());
}

void client_request_end(void) {
    client_pauses(0);
    member *me = member_here();
    if (me && me->kind == GATE_BEST_EFFORT) {
        more(&me->client->counts.requests, 1);
        STORE(me->client->in_request, 0);
        gate_board_changed(members_board());
    }
}

/* A phase has ended when the GPU is through with it. */
static void drain(member *me) {
    streams_mark(me);
    void *python = gil_release();
    uint64_t report = members_about_now() + REPORT_NS;
    while (gate_client_running(me->client) && !members_leaving()) {
        hold_relax();
        uint64_t now = members_about_now();
        if (now <= report) continue;
        member_beat(me, now);
        streams_report(me);
        report = now + REPORT_NS;
    }
    gil_restore(python);
}

void client_phase_end(void) {
    member *me = member_here();
    recording_phase();
    if (!me) return;
    if (gate_board_policy(members_board()) == GATE_TICK_TOCK) drain(me);
    STORE(me->client->phases, ADD(me->phases, 1));
    gate_board_changed(members_board());
}
