#define _GNU_SOURCE
#include "client.h"

#include <stdio.h>

#include "atomics.h"
#include "coverage.h"
#include "driver.h"
#include "gil.h"
#include "graphs.h"
#include "hold.h"
#include "measure.h"
#include "partition.h"
#include "profile.h"
#include "reads.h"
#include "requests.h"

enum { LONG_WINDOWS = 4, LEARN_FROM = 4, LEARN_AGAIN = 1024 };
enum { MARK_EVERY = 8, LATENCY_MARK_EVERY = 32, FENCED_MARK_EVERY = 32 }; /* launches; all below GATE_TRAIL */
static const uint64_t UNKNOWN_NS = 50 * 1000; /* what a kernel that was never measured is taken to need */

static int capturing;

void client_capture(int change) { __atomic_add_fetch(&capturing, change, __ATOMIC_ACQ_REL); }
int client_capturing(void) { return __atomic_load_n(&capturing, __ATOMIC_ACQUIRE) > 0; }

static void count(gate_counts *counts, const launch *made) {
    uint64_t *const of[] = {&counts->kernels, &counts->graphs, &counts->copies};
    more(of[made->sort], 1);
    if (made->sort != LAUNCH_COPY && !made->work.duration) more(&counts->unknown, 1);
}

/* launching */

/* A latency client's graphs are timed as its requests. */
static int worth_measuring(const launch *made, gate_class kind) {
    const kernel *of = made->kernel;
    if (!of || (made->sort == LAUNCH_GRAPH && kind == GATE_LATENCY)) return 0;
    if (profile_recording()) return 1;
    return !of->work.duration ? of->sampled < LEARN_FROM : of->launches % LEARN_AGAIN == 0;
}

static CUresult measured(const launch *made) {
    measure_harvest();
    int number = measure_begin(made->kernel, made->stream);
    CUresult result = made->submit(made, made->stream);
    measure_end(number, made->stream);
    return result;
}

static CUresult plain(const launch *made, gate_class kind) {
    return worth_measuring(made, kind) ? measured(made) : made->submit(made, made->stream);
}

static void say_too_many(void) {
    static int said;
    if (__atomic_exchange_n(&said, 1, __ATOMIC_ACQ_REL)) return;
    fprintf(stderr, "astrarium gate: more than %d streams; launches on the others are not protected\n", GATE_TRACKS);
}

static CUresult launch_latency(gate_board *board, member *of, launch *made) {
    if (gate_policy_holds_latency(gate_board_policy(board))) hold_until_admitted(board, of, &made->work);
    line *on = line_of(of, made->stream);
    if (!on) say_too_many();
    if (!on || client_capturing()) return hold_ends(board, of), made->submit(made, made->stream);
    on->touched = members_about_now();
    __atomic_store_n(&of->client->touched, on->touched, __ATOMIC_RELEASE);
    if (on->touched >= of->beat_at) member_beat(of, on->touched);
    request_begins(of, on, made->sort == LAUNCH_GRAPH ? made->kernel : NULL);
    of->client->work = made->work;
    gate_track_launch(on->track, made->work.duration);
    hold_ends(board, of);
    CUresult result = plain(made, GATE_LATENCY);
    if (made->sort == LAUNCH_GRAPH)
        request_closes(of, on);
    else if (on->track->launched - on->track->marked >= LATENCY_MARK_EVERY)
        line_mark(on);
    return result;
}

static int too_long(const gate_board *board, const member *of, const launch *made) {
    if (!of->company || !made->kernel || made->kernel->rigid) return 0;
    uint64_t given = gate_board_long_kernel(board), bound = given ? given : LONG_WINDOWS * gate_board_window(board);
    return gate_board_policy(board) == GATE_ASTRARIUM && !made->rigid && made->sort == LAUNCH_KERNEL &&
           made->work.duration >= bound && kernel_context_free(made->kernel->handle);
}

static CUresult placed(const gate_board *board, const member *of, const launch *made) {
    uint32_t partition = gate_board_partition(board);
    if (!partition || !too_long(board, of, made)) return plain(made, GATE_BEST_EFFORT);
    more(&of->client->counts.partitioned, 1);
    return partition_launch(made, partition);
}

static void charge(gate_board *board, const member *of, const launch *made) {
    more(&of->client->counts.beside, 1);
    gate_board_charge(board, members_now(), made->work.kind, made->work.duration);
}

/* Peers of a collective kernel wait for it on other GPUs: holding it would hold them, and two such could wait
 * for each other for ever. */
static int passes(const gate_board *board, const launch *made) {
    return !gate_policy_tracks(gate_board_policy(board)) || (made->kernel && made->kernel->collective);
}

/* Where everybody else is behind a fence there is nobody to ask. */
static int only_fenced(const gate_board *board, const member *of) {
    return gate_policy_fences(gate_board_policy(board)) && of->client->can_fence && !members_mixed() &&
           !gate_board_holds(board);
}

/* Often enough that a full window is seen to empty in steps, seldom enough to cost nothing. Who only stops at
 * fences is not waited for: he shows that he is alive. */
static void report(const gate_board *board, const member *of, line *on, uint64_t expected) {
    on->unmarked_ns += expected;
    uint32_t unmarked = on->track->launched - on->track->marked;
    int few = unmarked < MARK_EVERY && expected && on->unmarked_ns < gate_board_window(board) / 4;
    if (few || (unmarked < FENCED_MARK_EVERY && only_fenced(board, of))) return;
    line_mark(on);
    on->unmarked_ns = 0;
}

/* Before the GPU goes on here, no latency client of another process may be at work. */
static uint64_t fences_before(gate_board *board, member *of, CUstream stream, uint64_t number) {
    uint64_t made = 0, now = members_about_now();
    for (uint32_t index = 0, places = gate_board_places(board); index < places; index++) {
        gate_client *other = &board->clients[index];
        if (!gate_board_asked(board, of->place, other, now, number)) continue;
        if (line_await(stream, &other->open, 1, CU_STREAM_WAIT_VALUE_AND))
            made++;
        else
            __atomic_store_n(&of->client->can_fence, 0, __ATOMIC_RELEASE); /* from now on we are held */
    }
    return made;
}

static void pace(const gate_board *board, member *of, CUstream stream) {
    uint32_t next = of->pacing.paces + 1;
    if (!gate_board_paced(board)) return;
    if (line_await(stream, &of->client->permitted, next, CU_STREAM_WAIT_VALUE_GEQ))
        __atomic_store_n(&of->pacing.paces, next, __ATOMIC_RELEASE);
}

/* *on* is NULL for a stream too many: it has a fence before every launch. */
static void fence(gate_board *board, member *of, line *on, const launch *made) {
    if (!gate_policy_fences(gate_board_policy(board)) || !of->client->can_fence) return;
    uint64_t expected = made->work.duration ? made->work.duration : UNKNOWN_NS;
    if (on && !gate_fence_due(gate_board_window(board), on->unfenced_ns, &made->work)) {
        on->unfenced_ns += expected;
        return;
    }
    uint64_t fences = fences_before(board, of, made->stream, on ? on->fences++ : 0);
    more(&of->client->counts.fences, fences);
    of->company = fences > 0;
    if (fences) pace(board, of, made->stream);
    if (on) on->unfenced_ns = expected;
}

static void book(gate_board *board, member *of, line *on, const launch *made) {
    __atomic_store_n(&of->client->touched, members_about_now(), __ATOMIC_RELEASE);
    of->client->work = made->work;
    __atomic_store_n(&of->client->in_request, 1, __ATOMIC_RELEASE);
    if (on) gate_track_launch(on->track, made->work.duration ? made->work.duration : UNKNOWN_NS);
    hold_ends(board, of);
}

static CUresult launch_best_effort(gate_board *board, member *of, launch *made) {
    if (passes(board, made)) return plain(made, GATE_BEST_EFFORT);
    if (made->work.sms > board->most_sms) board->most_sms = made->work.sms;
    if (!only_fenced(board, of) && hold_until_admitted(board, of, &made->work)) charge(board, of, made);
    if (client_capturing()) return hold_ends(board, of), made->submit(made, made->stream);
    line *on = line_of(of, made->stream);
    fence(board, of, on, made);
    book(board, of, on, made);
    CUresult result = placed(board, of, made);
    if (on) report(board, of, on, made->work.duration);
    return result;
}

static void look_up(launch *made) {
    if (made->sort == LAUNCH_GRAPH) made->kernel = kernel_of_graph((CUgraphExec)made->arguments);
    if (made->sort == LAUNCH_KERNEL) made->kernel = kernel_of(made->function, made->grid, made->block, made->shared);
    if (!made->kernel) return;
    made->work = made->kernel->work;
    made->kernel->launches++;
    profile_launched(made->kernel);
}

static void capture(const member *of, const launch *made) {
    more(&of->client->counts.captured, 1);
    if (made->sort == LAUNCH_KERNEL)
        graph_captures(kernel_known(made->function, made->grid, made->block, made->shared));
}

CUresult client_launch(launch *made) {
    member *of = member_of(made->stream);
    if (client_capturing()) {
        if (of) capture(of, made);
        return made->submit(made, made->stream);
    }
    if (!of && !profile_recording()) return made->submit(made, made->stream);
    look_up(made);
    if (!of) return plain(made, GATE_BEST_EFFORT);
    count(&of->client->counts, made);
    gate_board *board = members_board();
    return of->kind == GATE_LATENCY ? launch_latency(board, of, made) : launch_best_effort(board, of, made);
}

/* boundaries */

/* One stream is waited for. */
void client_pauses_at(CUstream stream) {
    member *of = client_capturing() ? NULL : member_here();
    line *on = of ? line_known(of, stream) : NULL;
    if (!on) return;
    if (of->kind == GATE_LATENCY)
        request_closes(of, on);
    else
        line_mark(on);
}

void client_pauses(int everything) {
    member *of = client_capturing() ? NULL : member_here();
    if (!of) return;
    if (of->kind == GATE_LATENCY)
        requests_close(of, everything);
    else
        lines_mark(of);
}

static void end_for(member *of, CUstream stream) {
    line *on = line_known(of, stream);
    if (on && of->kind == GATE_LATENCY) request_closes(of, on);
    lines_stream_ends(of, stream);
}

void client_stream_ends(CUstream stream) {
    for (int place = 0; members_board() && place < GATE_CLIENTS; place++)
        if (member_at(place)) end_for(member_at(place), stream);
    members_forget_stream(stream);
}

void client_waited(void) {
    member *of = member_here();
    if (client_capturing()) return;
    if (of || profile_recording()) measure_harvest(); /* the best time for it: the GPU has just come so far */
    if (!of) return;
    if (of->kind == GATE_LATENCY)
        requests_harvest(of);
    else
        __atomic_store_n(&of->client->in_request, 0, __ATOMIC_RELEASE);
    gate_board_changed(members_board());
    coverage_look(members_about_now());
}

void client_request_end(void) {
    client_pauses(0);
    member *of = member_here();
    if (of && of->kind == GATE_BEST_EFFORT) {
        more(&of->client->counts.requests, 1);
        __atomic_store_n(&of->client->in_request, 0, __ATOMIC_RELEASE);
        gate_board_changed(members_board());
    }
}

/* A phase has ended when the GPU is through with it. */
static void drain(member *of) {
    lines_mark(of);
    void *python = gil_release();
    uint64_t report = members_about_now() + REPORT_NS;
    while (gate_client_running(of->client) && !members_leaving()) {
        hold_relax();
        uint64_t now = members_about_now();
        if (now > report) member_beat(of, now), lines_report(of), report = now + REPORT_NS;
    }
    gil_restore(python);
}

void client_phase_end(void) {
    member *of = member_here();
    profile_phase();
    if (!of) return;
    if (client_policy() == GATE_TICK_TOCK) drain(of);
    STORE(of->client->phases, ADD(of->phases, 1));
    gate_board_changed(members_board());
}

int client_mark_thread(int kind, const char *name) { return members_mark_thread(kind, name); }

int client_kind(CUstream stream) {
    const member *of = member_who(stream);
    return of && !client_capturing() ? (int)of->kind : -1;
}

uint64_t client_chunk(void) {
    const gate_board *board = members_board();
    return board ? gate_board_chunk(board) : 0;
}

int client_policy(void) {
    const gate_board *board = members_board();
    return board ? (int)gate_board_policy(board) : -1;
}
