#define _GNU_SOURCE
#include "members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "atomics.h"
#include "coverage.h"
#include "driver.h"
#include "guard.h"
#include "profile.h"
#include "reads.h"
#include "watch.h"

enum { STREAMS = 256, NOBODY = -1, NOT_MARKED = -2, NOT_MET = -3, BEAT_NS = 20 * 1000 * 1000 };
enum { ENDING = 1, LOST = 2 }; /* why all are leaving */
static const char CUT_SHORT[] = "astrarium gate: the board was cut short while it was used; this program passes freely\n";
static const char TAKEN[] = "astrarium gate: this program's place on the board was overwritten; it passes freely\n";

static gate_board *board;
static CUdeviceptr board_on_gpu; /* 0: the GPU cannot reach it */
static member members[GATE_CLIENTS];
static CUcontext context;        /* in which the board was made known to the GPU */
static int process_place = NOBODY, any_marked, leaving;
static _Thread_local int thread_place = NOT_MET;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Streams on which marked threads launched: backward runs on them from threads that nobody marked. */
static struct {
    uintptr_t stream; /* + 1 */
    int place;
} streams[STREAMS];

static uint64_t clock_ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t members_now(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t members_about_now(void) { return clock_ns(CLOCK_MONOTONIC_COARSE); }
int members_mixed(void) { return any_marked; }
int members_leaving(void) { return __atomic_load_n(&leaving, __ATOMIC_ACQUIRE); }

/* joining */

static int class_of(const char *name) {
    if (!name || !*name) return -1;
    if (strcmp(name, "latency") == 0) return GATE_LATENCY;
    if (strcmp(name, "best-effort") == 0) return GATE_BEST_EFFORT;
    fprintf(stderr, "astrarium gate: class %s: expected latency or best-effort; this program passes freely\n", name);
    return -1;
}

static uint32_t first_policy(void) {
    const char *name = getenv("ASTRARIUM_GATE_POLICY");
    int number = gate_policy_number(name ? name : "astrarium");
    if (number < 0) fprintf(stderr, "astrarium gate: there is no policy %s; astrarium it is\n", name);
    return number < 0 ? GATE_ASTRARIUM : (uint32_t)number;
}

static int joined(int kind, const char *name) {
    int place = gate_board_join(board, (gate_class)kind, name);
    if (place < 0) {
        fprintf(stderr, "astrarium gate: all %d places are taken; this program passes freely\n", GATE_CLIENTS);
        return NOBODY;
    }
    gate_client *client = &board->clients[place];
    members[place] = (member){
        .place = place, .kind = (gate_class)kind, .client = client, .phases = gate_client_phases(client)};
    pthread_mutex_init(&members[place].lock, NULL);
    __atomic_store_n(&members[place].client->can_fence, board_on_gpu != 0, __ATOMIC_RELEASE);
    return place;
}

static int reachable_by_gpu(const driver_table *real) {
    return real->write_value && real->wait_value && real->host_register &&
           real->host_register(board, sizeof *board, CU_HOST_REGISTER_PORTABLE_MAPPED) == CUDA_SUCCESS &&
           real->host_pointer(&board_on_gpu, board, 0) == CUDA_SUCCESS;
}

static void tell_all_can_fence(void) {
    for (int place = 0; place < GATE_CLIENTS; place++)
        if (members[place].client) __atomic_store_n(&members[place].client->can_fence, 1, __ATOMIC_RELEASE);
}

/* Needs a context, which a thread that is only being marked may not have yet. The very first launch may be into
 * a graph, which this must not break. */
static void register_with_gpu(void) {
    static int tried;
    const driver_table *real = driver();
    CUdevice device;
    int mode = CU_CAPTURE_RELAXED;
    if (tried || real->context_device(&device) != CUDA_SUCCESS) return;
    if (__atomic_exchange_n(&tried, 1, __ATOMIC_ACQ_REL)) return;
    if (real->exchange_mode) real->exchange_mode(&mode);
    if (real->context_current) real->context_current(&context);
    if (reachable_by_gpu(real)) {
        tell_all_can_fence();
    } else {
        board_on_gpu = 0;
        fputs("astrarium gate: the GPU cannot write to shared memory; launches are held, and work in flight is not "
              "bounded\n", stderr);
    }
    if (real->exchange_mode) real->exchange_mode(&mode);
}

static void read_environment(void) {
    const char *record = getenv("ASTRARIUM_GATE_RECORD"), *profile = getenv("ASTRARIUM_GATE_PROFILE");
    if (profile) profile_read(profile);
    if (record) profile_record(record);
    profile_meet_device();
}

static void open_board(void) {
    const char *path = getenv("ASTRARIUM_GATE_BOARD"), *why = NULL;
    if (!path) return;
    board = gate_board_open(path, first_policy(), kernel_sms_of_gpu(), &why);
    if (!board) {
        fprintf(stderr, "astrarium gate: cannot use the board %s: %s; this program passes freely\n", path, why);
        return;
    }
    gate_guard_tells(board, &leaving, LOST, CUT_SHORT);
    if (!board->knobs.sms) board->knobs.sms = kernel_sms_of_gpu();
    gate_board_vacate_own(board); /* another program of this process may have been here before it was replaced */
}

static void join(void) {
    read_environment();
    open_board();
    int kind = board ? class_of(getenv("ASTRARIUM_GATE_CLASS")) : -1;
    if (kind >= 0) process_place = joined(kind, getenv("ASTRARIUM_GATE_NAME"));
    if (process_place >= 0) coverage_begin(&board->clients[process_place]);
}

gate_board *members_board(void) {
    pthread_once(&once, join);
    return board;
}

/* leaving */

/* A child has its parent's memory but is a client of its own, from its first launch on. */
static void in_child(void) {
    memset(members, 0, sizeof members);
    memset(streams, 0, sizeof streams);
    profile_forget();
    watch_forget();
    any_marked = leaving = 0;
    once = (pthread_once_t)PTHREAD_ONCE_INIT;
    process_place = NOBODY;
    thread_place = NOT_MET;
    board = NULL;
    board_on_gpu = 0;
}

__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, in_child); }

/* Other threads may still be at work: what they look at stays, only their places are given back. */
__attribute__((destructor)) static void leave(void) {
    profile_write();
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
static void say_again(member *of) {
    gate_client *client = of->client;
    pthread_mutex_lock(&of->lock);
    STORE(client->kind, (uint32_t)of->kind);
    STORE(client->phases, LOAD(of->phases));
    STORE(client->tracks_used, (uint32_t)of->lines_used);
    if (of->kind == GATE_BEST_EFFORT) STORE(client->open, 1);
    pthread_mutex_unlock(&of->lock);
}

void member_beat(member *of, uint64_t now) {
    if (now < LOAD(of->beat_at) || members_leaving()) return;
    STORE(of->beat_at, now + BEAT_NS);
    gate_guard_stays();
    if (!gate_board_keeps(board, of->place)) return lose_place();
    say_again(of);
}

static void open_one(CUstream stream, const uint32_t *word, uint32_t value) {
    CUdeviceptr at = members_on_gpu(word);
    if (at) driver()->write_value(stream, at, value, 0);
}

/* The GPU still has the memory that a board was cut off from, and only the GPU can write there. */
void members_open_fences(void) {
    const driver_table *real = driver();
    CUstream stream = NULL;
    if (LOAD(leaving) != LOST || !board_on_gpu || !real->context_use || real->context_use(context) != CUDA_SUCCESS) return;
    if (real->stream_create_priority(&stream, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS) return;
    for (int place = 0; place < GATE_CLIENTS; place++) {
        gate_client *client = &board->clients[place];
        STORE(client->open, 1);
        open_one(stream, &client->open, 1);
        if (!members[place].client) continue;
        STORE(client->permitted, LOAD(members[place].pacing.paces));
        open_one(stream, &client->permitted, LOAD(members[place].pacing.paces));
    }
}

/* who */

static unsigned slot(uintptr_t key, unsigned step) { return (unsigned)((key >> 4) + step) % STREAMS; }

/* Default streams are everybody's: where the process has a class, a marked thread cannot claim them. */
static int claimable(CUstream stream) {
    return (uintptr_t)stream > CU_PER_THREAD_STREAM || process_place == NOBODY;
}

static void remember(CUstream stream, int place) {
    uintptr_t key = (uintptr_t)stream + 1;
    for (unsigned step = 0; claimable(stream) && step < 16; step++) {
        unsigned at = slot(key, step);
        if (streams[at].stream && streams[at].stream != key) continue;
        streams[at].place = place;
        __atomic_store_n(&streams[at].stream, key, __ATOMIC_RELEASE);
        return;
    }
}

static int remembered(CUstream stream) {
    uintptr_t key = (uintptr_t)stream + 1;
    for (unsigned step = 0; step < 16; step++)
        if (__atomic_load_n(&streams[slot(key, step)].stream, __ATOMIC_ACQUIRE) == key)
            return streams[slot(key, step)].place;
    return process_place;
}

void members_forget_stream(CUstream stream) {
    uintptr_t key = (uintptr_t)stream + 1;
    for (unsigned step = 0; any_marked && step < 16; step++)
        if (streams[slot(key, step)].stream == key) streams[slot(key, step)].place = process_place;
}

member *member_at(int place) {
    return place >= 0 && !members_leaving() && members[place].client ? &members[place] : NULL;
}

/* Of the calling thread. */
static int place_here(void) {
    if (thread_place == NOT_MET) gate_guard_unblock(), thread_place = NOT_MARKED;
    return thread_place;
}

member *member_who(CUstream stream) {
    if (!members_board()) return NULL;
    int mine = place_here();
    if (mine != NOT_MARKED) return member_at(mine);
    return member_at(any_marked ? remembered(stream) : process_place);
}

member *member_of(CUstream stream) {
    member *one = member_who(stream);
    if (!one) return NULL;
    if (!board_on_gpu) register_with_gpu();
    if (thread_place != NOT_MARKED) remember(stream, thread_place);
    if (one->kind == GATE_BEST_EFFORT) watch_start();
    return one;
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

static void forget_place(int place) {
    for (int at = 0; at < STREAMS; at++)
        if (streams[at].stream && streams[at].place == place) streams[at].place = process_place;
}

int members_mark_thread(int kind, const char *name) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (!members_board()) return -1;
    pthread_mutex_lock(&lock);
    if (kind < 0) {
        if (thread_place >= 0) forget_place(thread_place);
        thread_place = NOT_MARKED;
    } else {
        any_marked = 1;
        thread_place = joined_before(kind, name);
        if (thread_place < 0) thread_place = joined(kind, name);
    }
    pthread_mutex_unlock(&lock);
    return thread_place == NOBODY ? -1 : 0;
}

CUdeviceptr members_on_gpu(const void *field) {
    return board_on_gpu ? board_on_gpu + (CUdeviceptr)((const char *)field - (const char *)board) : 0;
}
