#define _GNU_SOURCE
#include "members.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "coverage.h"
#include "driver.h"
#include "profile.h"

enum { STREAMS = 256, NOBODY = -1, NOT_MARKED = -2 };

static gate_board *board;
static CUdeviceptr board_on_gpu; /* 0: the GPU cannot write to it */
static member members[GATE_CLIENTS];
static int process_place = NOBODY;
static _Thread_local int thread_place = NOT_MARKED;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Streams on which marked threads launched: backward runs on them from threads that nobody marked. */
static struct {
    uintptr_t stream; /* + 1 */
    int place;
} streams[STREAMS];
static int any_marked;

static uint64_t clock_ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

uint64_t members_now(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t members_about_now(void) { return clock_ns(CLOCK_MONOTONIC_COARSE); }
int members_mixed(void) { return any_marked; }

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

static uint32_t sms_of_gpu(void) {
    int sms = 0;
    CUdevice device;
    const driver_table *real = driver();
    if (real->context_device && real->context_device(&device) == CUDA_SUCCESS)
        real->device_attribute(&sms, CU_DEVICE_ATTRIBUTE_SMS, device);
    return (uint32_t)sms;
}

enum { WATCH_NS = 20 * 1000 * 1000, PACE_NS = 20 * 1000 };

/* A latency client that dies leaves its fence closed, and who stands before it on the GPU cannot look. */
static void *watch(void *nothing) {
    uint64_t last = members_now(), watched_at = 0, credit = 0;
    prctl(PR_SET_TIMERSLACK, 1);
    for (gate_board *watched; (watched = __atomic_load_n(&board, __ATOMIC_ACQUIRE));) {
        uint64_t now = members_now();
        if (now >= watched_at + WATCH_NS) gate_board_watch(watched, watched_at = now);
        if (process_place >= 0) credit = gate_board_pace(watched, process_place, now, now - last, credit);
        last = now;
        struct timespec pause = {.tv_nsec = gate_board_paced(watched) ? PACE_NS : WATCH_NS};
        nanosleep(&pause, NULL);
    }
    return nothing;
}

static int watching;

static void start_watching(void) {
    pthread_t thread;
    if (!watching && pthread_create(&thread, NULL, watch, NULL) == 0) watching = 1, pthread_detach(thread);
}

static int joined(int kind, const char *name) {
    int place = gate_board_join(board, (gate_class)kind, name);
    if (place < 0) {
        fprintf(stderr, "astrarium gate: all %d places are taken; this program passes freely\n", GATE_CLIENTS);
        return NOBODY;
    }
    members[place] = (member){.place = place, .kind = (gate_class)kind, .client = &board->clients[place]};
    pthread_mutex_init(&members[place].lock, NULL);
    if (kind == GATE_BEST_EFFORT) start_watching();
    return place;
}

/* Needs a context, which a thread that is only being marked may not have yet. */
static void register_with_gpu(void) {
    static int tried;
    const driver_table *real = driver();
    CUdevice device;
    if (tried || !real->write_value || !real->host_register) return;
    if (real->context_device(&device) != CUDA_SUCCESS) return;
    tried = 1;
    int mode = CU_CAPTURE_RELAXED; /* the very first launch may be into a graph, which this must not break */
    if (real->exchange_mode) real->exchange_mode(&mode);
    if (real->host_register(board, sizeof *board, CU_HOST_REGISTER_PORTABLE_MAPPED) != CUDA_SUCCESS ||
        real->host_pointer(&board_on_gpu, board, 0) != CUDA_SUCCESS) {
        board_on_gpu = 0;
        fputs("astrarium gate: the GPU cannot write to shared memory; work in flight is not bounded\n", stderr);
    }
    if (real->exchange_mode) real->exchange_mode(&mode);
}

static void join(void) {
    const char *path = getenv("ASTRARIUM_GATE_BOARD"), *record = getenv("ASTRARIUM_GATE_RECORD");
    const char *profile = getenv("ASTRARIUM_GATE_PROFILE"), *name = getenv("ASTRARIUM_GATE_NAME");
    const char *why = NULL;
    if (profile) profile_read(profile);
    if (record) profile_record(record);
    profile_meet_device();
    if (!path) return;
    board = gate_board_open(path, first_policy(), sms_of_gpu(), &why);
    if (!board) {
        fprintf(stderr, "astrarium gate: cannot use the board %s: %s; this program passes freely\n", path, why);
        return;
    }
    if (!board->knobs.sms) board->knobs.sms = sms_of_gpu();
    int kind = class_of(getenv("ASTRARIUM_GATE_CLASS"));
    if (kind >= 0) process_place = joined(kind, name);
    if (process_place >= 0) coverage_begin(&board->clients[process_place]);
}

gate_board *members_board(void) {
    pthread_once(&once, join);
    return board;
}

/* leaving */

static void forget(void) {
    for (int place = 0; place < GATE_CLIENTS; place++) members[place].client = NULL;
}

/* A child has its parent's memory but is a client of its own, from its first launch on. */
static void in_child(void) {
    forget();
    profile_forget();
    watching = any_marked = 0; /* threads stay behind */
    once = (pthread_once_t)PTHREAD_ONCE_INIT;
    process_place = NOBODY;
    thread_place = NOT_MARKED;
    board = NULL;
}

__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, in_child); }

__attribute__((destructor)) static void leave(void) {
    profile_write();
    if (board) coverage_end();
    for (int place = 0; place < GATE_CLIENTS; place++)
        if (board && members[place].client) gate_board_leave(board, place);
    forget();
    board = NULL;
}

/* who */

static void remember(CUstream stream, int place) {
    uintptr_t key = (uintptr_t)stream + 1;
    for (unsigned step = 0; step < 16; step++) {
        unsigned at = (unsigned)((key >> 4) + step) % STREAMS;
        if (streams[at].stream && streams[at].stream != key) continue;
        streams[at].place = place;
        __atomic_store_n(&streams[at].stream, key, __ATOMIC_RELEASE);
        return;
    }
}

static int remembered(CUstream stream) {
    uintptr_t key = (uintptr_t)stream + 1;
    for (unsigned step = 0; step < 16; step++) {
        unsigned at = (unsigned)((key >> 4) + step) % STREAMS;
        if (__atomic_load_n(&streams[at].stream, __ATOMIC_ACQUIRE) == key) return streams[at].place;
    }
    return process_place;
}

static member *at_place(int place) {
    return place >= 0 && members[place].client ? &members[place] : NULL;
}

member *member_of(CUstream stream) {
    if (!members_board()) return NULL;
    if (!board_on_gpu) register_with_gpu();
    if (thread_place == NOT_MARKED) return at_place(any_marked ? remembered(stream) : process_place);
    remember(stream, thread_place);
    return at_place(thread_place);
}

member *member_here(void) {
    if (!members_board()) return NULL;
    return at_place(thread_place == NOT_MARKED ? process_place : thread_place);
}

/* Threads with the same name and class are one client. */
static int joined_before(int kind, const char *name) {
    for (int place = 0; place < GATE_CLIENTS; place++)
        if (members[place].client && members[place].kind == (gate_class)kind &&
            strncmp(members[place].client->name, name ? name : "", GATE_NAME - 1) == 0)
            return place;
    return NOBODY;
}

int members_mark_thread(int kind, const char *name) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    if (!members_board()) return -1;
    if (kind < 0) return thread_place = NOT_MARKED, 0;
    pthread_mutex_lock(&lock);
    any_marked = 1;
    thread_place = joined_before(kind, name);
    if (thread_place < 0) thread_place = joined(kind, name);
    pthread_mutex_unlock(&lock);
    return thread_place < 0 ? -1 : 0;
}

/* reports */

static CUdeviceptr on_gpu(const void *field) {
    return board_on_gpu + (CUdeviceptr)((const char *)field - (const char *)board);
}

void members_mark(gate_track *track) {
    uint32_t upto = track->launched;
    if (track->marked == upto) return;
    track->marked = upto;
    CUstream stream = (CUstream)(uintptr_t)(track->stream - 1);
    if (board_on_gpu && driver()->write_value(stream, on_gpu(&track->completed), upto, 0) == CUDA_SUCCESS) return;
    __atomic_store_n(&track->completed, upto, __ATOMIC_RELEASE); /* nobody is to wait for what is not reported */
}

int members_on_gpu(void) { return board_on_gpu != 0; }

int members_write_fence(gate_client *client, CUstream stream, uint32_t open) {
    return board_on_gpu && driver()->write_value(stream, on_gpu(&client->open), open, 0) == CUDA_SUCCESS;
}

int members_await_fence(gate_client *client, CUstream stream) {
    return board_on_gpu && driver()->wait_value &&
           driver()->wait_value(stream, on_gpu(&client->open), 1, CU_STREAM_WAIT_VALUE_AND) == CUDA_SUCCESS;
}

int members_await_pace(gate_client *client, CUstream stream) {
    uint32_t next = client->paces + 1;
    if (!board_on_gpu || !driver()->wait_value) return 0;
    if (driver()->wait_value(stream, on_gpu(&client->permitted), next, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS) return 0;
    __atomic_store_n(&client->paces, next, __ATOMIC_RELEASE);
    return 1;
}

void members_stream_ends(CUstream stream) {
    for (int place = 0; place < GATE_CLIENTS; place++)
        for (int index = 0; members[place].client && index < GATE_TRACKS; index++)
            if (members[place].client->tracks[index].stream == (uintptr_t)stream + 1)
                members_mark(&members[place].client->tracks[index]);
}

void members_mark_all(const member *of) {
    for (int index = 0; index < GATE_TRACKS && of->client->tracks[index].stream; index++)
        members_mark(&of->client->tracks[index]);
}
