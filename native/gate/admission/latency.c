#include "admission/latency.h"

#include <stdio.h>

#include "admission/hold.h"
#include "admission/requests.h"
#include "board/atomics.h"
#include "board/reads.h"
#include "board/tracks.h"
#include "kernels/graphs.h"

enum { MARK_EVERY = 32 }; /* launches; below GATE_TRAIL */

static void say_too_many(void) {
    static int said;
    if (__atomic_exchange_n(&said, 1, __ATOMIC_ACQ_REL)) return;
    fprintf(stderr, "astrarium gate: more than %d streams; launches on the others are not protected\n", GATE_TRACKS);
}

static void give_sign_of_life(member *me, member_stream *stream) {
    stream->touched = members_about_now();
    STORE(me->client->touched, stream->touched);
    if (stream->touched >= me->beat_at) member_beat(me, stream->touched);
}

static CUresult launch_on(gate_board *board, member *me, member_stream *stream, launch *made) {
    int is_request = made->sort == LAUNCH_GRAPH;
    give_sign_of_life(me, stream);
    request_begins(me, stream, is_request ? made->kernel : NULL);
    me->client->work = made->work;
    gate_track_launch(stream->track, made->work.duration);
    hold_ends(board, me);
    CUresult result = launch_submit(made, GATE_LATENCY);
    if (is_request)
        request_closes(me, stream);
    else if (stream->track->launched - stream->track->marked >= MARK_EVERY)
        stream_mark(stream);
    return result;
}

CUresult latency_launch(gate_board *board, member *me, launch *made) {
    if (gate_policy_holds_latency(gate_board_policy(board))) hold_until_admitted(board, me, &made->work);
    member_stream *stream = stream_of(me, made->stream);
    if (!stream) say_too_many();
    if (stream && !graph_capturing()) return launch_on(board, me, stream, made);
    hold_ends(board, me);
    return made->submit(made, made->stream);
}
