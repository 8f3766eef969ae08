#define _GNU_SOURCE
#include "members/members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "board/atomics.h"
#include "board/board.h"
#include "board/guard.h"
#include "board/places.h"
#include "board/reads.h"
#include "driver/coverage.h"
#include "kernels/recording.h"
#include "members/board_on_gpu.h"
#include "members/environment.h"
#include "members/stream_owners.h"

enum { NOBODY = -1, NOT_MARKED = -2, NOT_MET = -3 }; /* instead of a place */
enum { BEAT_NS = 20 * 1000 * 1000 };
enum { ENDING = 1, LOST = 2 }; /* why all are leaving */
static const char CUT_SHORT[] =
    "astrarium gate: the board was cut short while it was used; this program passes freely\n";
static const char TAKEN[] = "astrarium gate: this program's place on the board was overwritten; it passes freely\n";

static gate_board *board;
static member members[GATE_CLIENTS];
static int process_place = NOBODY, any_marked, leaving;
static _Thread_local int thread_place = NOT_MET;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t clock_ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t members_now(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t members_about_now(void) { return clock_ns(CLOCK_MONOTONIC_COARSE); }
int members_mixed(void) { return any_marked; }
int members_leaving(void) { return LOAD(leaving); }

/* joining */

static int joined(int kind, const char *name) {
    int place = gate_board_join(board, (gate_class)kind, name);
    if (place < 0) {
        fprintf(stderr, "astrarium gate: all %d places are taken; this program passes freely\n", GATE_CLIENTS);
        return NOBODY;
    }
    gate_client *client = &board->clients[place];
    members[place] =
        (member){.place = place, .kind = (gate_class)kind, .client = client, .phases = gate_client_phases(client)};
    pthread_mutex_init(&members[place].lock, NULL);
    STORE(client->can_fence, gpu_reaches_board());
    return place;
}

static void tell_all_can_fence(void) {
    for (int place = 0; place < GATE_CLIENTS; place++)
        if (members[place].client) STORE(members[place].client->can_fence, 1);
}

static void open_board(void) {
    const char *path = getenv("ASTRARIUM_GATE_BOARD"), *why = NULL;
    if (!path) return;
    board = gate_board_open(path, environment_policy(), kernel_sms_of_gpu(), &why);
    if (!board) {
        fprintf(stderr, "astrarium gate: cannot use the board %s: %s; this program passes freely\n", path, why);
        return;
    }
    gate_guard_tells(board, &leaving, LOST, CUT_SHORT);
    if (!board->knobs.sms) board->knobs.sms = kernel_sms_of_gpu();
    gate_board_vacate_own(board); /* another program of this process may have been here before it was replaced */
}

static void join(void) {
    environment_profiles();
    open_board();
    int kind = board ? environment_class() : -1;
    if (kind >= 0) process_place = joined(kind, getenv("ASTRARIUM_GATE_NAME"));
    if (process_place >= 0) coverage_begin(&board->clients[process_place].counts.ran);
}

gate_board *members_board(void) {
    pthread_once(&once, join);
    return board;
}

/* leaving */

/* A child has its parent's memory but is a client of its own, from its first launch on. */
static void in_child(void) {
    memset(members, 0, sizeof members);
    stream_owners_forget_all();
    recording_forget();
    gpu_forgets_board();
    any_marked = 0;
    leaving = 0;
    once = (pthread_once_t)PTHREAD_ONCE_INIT;
    process_place = NOBODY;
    thread_place = NOT_MET;
    board = NULL;
}

__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, in_child); }

/* Other threads may still be at work: what they look at stays, only their places are given back. */
__attribute__((destructor)) static void leave(void) {
    recording_write();
    if (board) coverage_end();
    int before = __atomic_exchange_n(&leaving, ENDING, __ATOMIC_ACQ_REL);
    for (int place = 0; place < GATE_CLIENTS; place++)
        if (board && !before && members[place].client) gate_board_leave(board, place);
}

/* staying */

static void lose_place(void) {
    if (__atomic_exchange_n(&leaving, LOST, __ATOMIC_ACQ_REL) == 0) fputs(TAKEN, stderr);
}

/* Under the lock: a stream that comes meanwhile is not forgotten. Nobody stops at best effort's fence. */
static void say_again(member *me) {
    gate_client *client = me->client;
    pthread_mutex_lock(&me->lock);
    STORE(client->kind, (uint32_t)me->kind);
    STORE(client->phases, LOAD(me->phases));
    STORE(client->tracks_used, (uint32_t)me->streams_used);
    if (me->kind == GATE_BEST_EFFORT) STORE(client->open, 1);
    pthread_mutex_unlock(&me->lock);
}

void member_beat(member *me, uint64_t now) {
    if (now < LOAD(me->beat_at) || members_leaving()) return;
    STORE(me->beat_at, now + BEAT_NS);
    gate_guard_stays();
    if (!gate_board_keeps(board, me->place)) return lose_place();
    say_again(me);
}

static void open_fences_of(int place, CUstream stream) {
    gate_client *client = &board->clients[place];
    STORE(client->open, 1);
    gpu_write(stream, &client->open, 1);
    if (!members[place].client) return;
    STORE(client->permitted, LOAD(members[place].pacing.paces));
    gpu_write(stream, &client->permitted, LOAD(members[place].pacing.paces));
}

/* The GPU still has the memory that a board was cut off from, and only the GPU can write there. */
void members_open_fences(void) {
    CUstream stream = LOAD(leaving) == LOST ? gpu_own_stream() : NULL;
    for (int place = 0; stream && place < GATE_CLIENTS; place++) open_fences_of(place, stream);
}

/* who */

/* Default streams are everybody's: where the process has a class, a marked thread cannot claim them. */
static int claimable(CUstream stream) { return (uintptr_t)stream > CU_PER_THREAD_STREAM || process_place == NOBODY; }

void members_forget_stream(CUstream stream) {
    if (any_marked) stream_owners_forget_stream(stream, process_place);
}

member *member_at(int place) {
    return place >= 0 && !members_leaving() && members[place].client ? &members[place] : NULL;
}

/* Of the calling thread. */
static int place_here(void) {
    if (thread_place == NOT_MET) {
        gate_guard_unblock();
        thread_place = NOT_MARKED;
    }
    return thread_place;
}

member *member_who(CUstream stream) {
    if (!members_board()) return NULL;
    int mine = place_here();
    if (mine != NOT_MARKED) return member_at(mine);
    return member_at(any_marked ? stream_owners_find(stream, process_place) : process_place);
}

member *member_of(CUstream stream) {
    member *me = member_who(stream);
    if (!me) return NULL;
    if (!gpu_reaches_board() && gpu_meets_board(board)) tell_all_can_fence();
    if (thread_place != NOT_MARKED && claimable(stream)) stream_owners_remember(stream, thread_place);
    return me;
}

member *member_here(void) {
    if (!members_board()) return NULL;
    int mine = place_here();
    return member_at(mine == NOT_MARKED ? process_place : mine);
}

/* Threads with the same name and class are one client. */
static int joined_before(int kind, const char *name) {
    for (int place = 0; place < GATE_CLIENTS; place++)
        if (members[place].client && members[place].kind == (gate_class)kind &&
            strncmp(members[place].client->name, name ? name : "", GATE_NAME - 1) == 0)
            return place;
    return NOBODY;
}

static void unmark_thread(void) {
    if (thread_place >= 0) stream_owners_forget_place(thread_place, process_place);
    thread_place = NOT_MARKED;
}

static void mark_thread(int kind, const char *name) {
    any_marked = 1;
    thread_place = joined_before(kind, name);
    if (thread_place < 0) thread_place = joined(kind, name);
}

int members_mark_thread(int kind, const char *name) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (!members_board()) return -1;
    pthread_mutex_lock(&lock);
    if (kind < 0)
        unmark_thread();
    else
        mark_thread(kind, name);
    pthread_mutex_unlock(&lock);
    return thread_place == NOBODY ? -1 : 0;
}
