#include "admission/admission.h"

#include "admission/best_effort.h"
#include "admission/latency.h"
#include "board/atomics.h"
#include "board/reads.h"
#include "kernels/graphs.h"
#include "kernels/recording.h"
#include "members/watch.h"

static void count(gate_counts *counts, const launch *made) {
    uint64_t *const by_sort[] = {&counts->kernels, &counts->graphs, &counts->copies};
    more(by_sort[made->sort], 1);
    if (made->sort != LAUNCH_COPY && !made->work.duration) more(&counts->unknown, 1);
}

static void note_captured(const member *me, const launch *made) {
    more(&me->client->counts.captured, 1);
    if (made->sort == LAUNCH_KERNEL) graph_captures(kernel_known(made->function, &made->shape));
}

static CUresult launch_for(member *me, launch *made) {
    gate_board *board = members_board();
    count(&me->client->counts, made);
    return me->kind == GATE_LATENCY ? latency_launch(board, me, made) : best_effort_launch(board, me, made);
}

CUresult client_launch(launch *made) {
    member *me = member_of(made->stream);
    if (me && me->kind == GATE_BEST_EFFORT) watch_start();
    if (graph_capturing()) {
        if (me) note_captured(me, made);
        return made->submit(made, made->stream);
    }
    if (!me && !recording_is_on()) return made->submit(made, made->stream);
    launch_look_up(made);
    return me ? launch_for(me, made) : launch_submit(made, GATE_BEST_EFFORT);
}

int client_kind(CUstream stream) {
    const member *me = member_who(stream);
    return me && !graph_capturing() ? (int)me->kind : -1;
}

uint64_t client_chunk(void) {
    const gate_board *board = members_board();
    return board ? gate_board_chunk(board) : 0;
}

int client_policy(void) {
    const gate_board *board = members_board();
    return board ? (int)gate_board_policy(board) : -1;
}
