#define _GNU_SOURCE
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
#define STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELEASE)
#define ADD(field, value) __atomic_add_fetch(&(field), (value), __ATOMIC_ACQ_REL)

static const uint32_t MAGIC = 0x41475445;
static const uint64_t DEFAULT_LEASE = 200 * 1000 * 1000;
static const uint64_t DEFAULT_CHUNK = 2 << 20;
const double gate_first_duty = 0.2;
static const uint64_t RECENT = 20 * 1000 * 1000; /* ns: a client that wants throughput launches all the time */

/* opening */

/* Process ids mean nothing in another container. */
static uint64_t name_space(void) {
    struct stat found;
    return stat("/proc/self/ns/pid", &found) == 0 ? (uint64_t)found.st_ino : 0;
}

static void fill(gate_board *board, uint32_t policy, uint32_t sms) {
    board->processes = name_space();
    board->version = GATE_BOARD_VERSION;
    board->size = sizeof *board;
    board->knobs = gate_defaults(policy, sms);
    board->lease = DEFAULT_LEASE;
    board->partition = sms * 4 / 5 / 8 * 8; /* the GPU divides its SMs by eight */
    board->chunk = DEFAULT_CHUNK;
    board->duty = gate_first_duty;
    STORE(board->magic, MAGIC);
}

static gate_board *mapped(int fd) {
    void *at = mmap(NULL, sizeof(gate_board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

static void nap(uint64_t ns) {
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    nanosleep(&time, NULL);
}

/* Whoever made the file may still be at it: for a second, it is waited for. */
static int ready(int fd) {
    struct stat found;
    for (int tries = 0; tries < 1000; tries++, nap(1000000))
        if (fstat(fd, &found) == 0 && (size_t)found.st_size >= sizeof(gate_board)) return 1;
    return 0;
}

static int own(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 && found.st_uid == geteuid();
}

static int stamped(const gate_board *board) {
    for (int tries = 0; tries < 1000 && LOAD(board->magic) != MAGIC; tries++) nap(1000000);
    return LOAD(board->magic) == MAGIC;
}

static gate_board *join_existing(const char *path, const char **why) {
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return *why = strerror(errno), NULL;
    if (!own(fd)) return close(fd), *why = "it belongs to another user", NULL;
    if (!ready(fd)) return close(fd), *why = "it is no board of this version", NULL;
    gate_board *board = mapped(fd);
    if (!board) return *why = strerror(errno), NULL;
    int known = stamped(board) && board->version == GATE_BOARD_VERSION && board->size == sizeof *board;
    if (known && board->processes == name_space()) return board;
    gate_board_close(board);
    *why = known ? "it was made in another container, where process ids mean something else"
                 : "it is no board of this version";
    return NULL;
}

gate_board *gate_board_open(const char *path, uint32_t policy, uint32_t sms, const char **why) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return errno == EEXIST ? join_existing(path, why) : (*why = strerror(errno), NULL);
    int problem = posix_fallocate(fd, 0, sizeof(gate_board)); /* now, not by a signal when it is written to */
    if (problem) return close(fd), unlink(path), *why = strerror(problem), NULL;
    gate_board *board = mapped(fd);
    if (!board) return unlink(path), *why = strerror(errno), NULL;
    fill(board, policy, sms);
    return board;
}

void gate_board_close(gate_board *board) { munmap(board, sizeof *board); }

/* knobs: a sequence lock, since readers ask at every launch */

gate_knobs gate_board_knobs(const gate_board *board) {
    gate_knobs knobs;
    for (int tries = 0; tries < 1000; tries++) {
        uint32_t before = LOAD(board->knobs_version);
        knobs = board->knobs;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (!(before & 1) && before == LOAD(board->knobs_version)) break;
    }
    return knobs; /* also where a writer died in the middle: any mixture of knobs is a valid one */
}

/* One at a time. A writer that died in the middle is not waited for: after a while its turn is over. */
static uint32_t begin_writing(gate_board *board) {
    for (int tries = 0; tries < 1000; tries++) {
        uint32_t version = LOAD(board->knobs_version);
        if (version & 1) {
            nap(10000);
            continue;
        }
        if (__atomic_compare_exchange_n(&board->knobs_version, &version, version + 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return version + 1;
    }
    return LOAD(board->knobs_version) | 1;
}

void gate_board_set_knobs(gate_board *board, const gate_knobs *knobs) {
    uint32_t version = begin_writing(board);
    board->knobs = *knobs;
    STORE(board->knobs_version, version + 1);
    gate_board_changed(board);
}

/* places */

static const uint64_t BURIED = 1; /* no birth: the first process is older than that */

static uint64_t birth_of(int pid) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = 0;
    const char *at = strrchr(text, ')'); /* names may hold spaces */
    char state;
    int threads;
    unsigned long long born;
    int found = at ? sscanf(at + 1,
                            " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d %*d %llu",
                            &state, &threads, &born)
                   : 0;
    if (found != 3) return 0;
    return state == 'Z' && threads <= 1 ? BURIED : born; /* only its parent has not asked how it ended */
}

static int dead(const gate_client *client) {
    if (kill(client->pid, 0) != 0 && errno == ESRCH) return 1;
    uint64_t born = birth_of(client->pid);
    return born && client->born && born != client->born;
}

/* Whoever takes a place, to have it or to clear it, writes into its state who he is. */
static uint32_t taken_by(int pid) { return (uint32_t)pid << 2 | GATE_TAKEN; }

static int take(gate_client *client, uint32_t from) {
    return __atomic_compare_exchange_n(&client->state, &from, taken_by(getpid()), 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

/* Of a place that one has taken. */
static void vacate(gate_client *client) {
    size_t head = offsetof(gate_client, pid), fence = offsetof(gate_client, open);
    memset((char *)client + head, 0, fence - head);
    client->paces = client->permitted = client->fences_passed = client->can_fence = client->tracks_used = 0;
    memset(client->tracks, 0, sizeof client->tracks);
    STORE(client->open, 1); /* whoever stopped at it goes on */
    STORE(client->state, GATE_FREE);
}

static int clear(gate_client *client) {
    uint32_t state = LOAD(client->state);
    if ((state & 3) == GATE_TAKEN) { /* somebody may have died while he took it */
        int pid = (int)(state >> 2);
        if (kill(pid, 0) == 0 || errno != ESRCH || !take(client, state)) return 0;
    } else if (state != GATE_LIVE || !dead(client) || !take(client, GATE_LIVE)) {
        return 0;
    }
    vacate(client);
    return 1;
}

int gate_board_sweep(gate_board *board) {
    int freed = 0;
    for (int index = 0; index < GATE_CLIENTS; index++) freed += clear(&board->clients[index]);
    if (freed) gate_board_changed(board);
    return freed;
}

void gate_board_vacate_own(gate_board *board) {
    for (int index = 0; index < GATE_CLIENTS; index++) {
        gate_client *client = &board->clients[index];
        if (LOAD(client->state) == GATE_LIVE && client->pid == (int32_t)getpid() && take(client, GATE_LIVE))
            vacate(client);
    }
}

static int free_place(gate_board *board) {
    for (int index = 0; index < GATE_CLIENTS; index++)
        if (take(&board->clients[index], GATE_FREE)) return index;
    return -1;
}

static void note_place(gate_board *board, uint32_t index) {
    uint32_t places = LOAD(board->places);
    while (places <= index && !__atomic_compare_exchange_n(&board->places, &places, index + 1, 0, __ATOMIC_ACQ_REL,
                                                           __ATOMIC_ACQUIRE)) {
    }
}

/* Who comes late to a dance of forward and backward begins with the next forward (tick-tock). */
static uint64_t first_phase(const gate_board *board, gate_class kind) {
    uint64_t most = 0;
    for (uint32_t index = 0; index < LOAD(board->places); index++) {
        const gate_client *other = &board->clients[index];
        if (LOAD(other->state) == GATE_LIVE && other->kind != kind && other->phases > most) most = other->phases;
    }
    return most / 2 * 2;
}

static void move_in(gate_board *board, gate_client *client, gate_class kind, const char *name) {
    client->pid = (int32_t)getpid();
    client->born = birth_of(client->pid);
    client->kind = kind;
    snprintf(client->name, sizeof client->name, "%s", name ? name : "");
    memcpy(client->harm, board->knobs.harm, sizeof client->harm);
    client->phases = first_phase(board, kind);
    STORE(client->open, 1);
    STORE(client->state, GATE_LIVE);
}

int gate_board_join(gate_board *board, gate_class kind, const char *name) {
    gate_board_sweep(board);
    int index = free_place(board);
    if (index < 0) return -1;
    note_place(board, (uint32_t)index);
    move_in(board, &board->clients[index], kind, name);
    gate_board_changed(board);
    return index;
}

void gate_board_leave(gate_board *board, int client) {
    if (take(&board->clients[client], GATE_LIVE)) vacate(&board->clients[client]);
    gate_board_changed(board);
}

/* launches */

/* A track that another stream had before goes on from where it is: reports of that one may still come. */
gate_track *gate_track_take(gate_client *client, int index) {
    if ((uint32_t)index >= LOAD(client->tracks_used)) STORE(client->tracks_used, (uint32_t)index + 1);
    return &client->tracks[index];
}

void gate_track_launch(gate_track *track, uint64_t expected_ns) {
    track->launched_ns += expected_ns;
    track->trail[(track->launched + 1) % GATE_TRAIL] = track->launched_ns;
    STORE(track->launched, track->launched + 1);
}

/* A write of who had this place before may still come: what looks more than launched is none in flight. */
static uint32_t behind(uint32_t launched, uint32_t completed) {
    return (int32_t)(launched - completed) > 0 ? launched - completed : 0;
}

uint32_t gate_track_in_flight(const gate_track *track) {
    uint32_t completed = LOAD(track->completed); /* first: it can only be behind */
    return behind(LOAD(track->launched), completed);
}

uint64_t gate_track_in_flight_ns(const gate_track *track) {
    uint32_t completed = LOAD(track->completed);
    uint32_t count = behind(LOAD(track->launched), completed);
    if (!count) return 0;
    uint64_t total = LOAD(track->launched_ns);
    uint32_t known = count < GATE_TRAIL ? completed : LOAD(track->launched) + 1; /* at least what is told apart */
    uint64_t done = LOAD(track->trail[known % GATE_TRAIL]);
    return total > done ? total - done : 0;
}

int gate_client_running(const gate_client *client) {
    for (uint32_t index = 0; index < LOAD(client->tracks_used); index++)
        if (gate_track_in_flight(&client->tracks[index])) return 1;
    return 0;
}

/* scenes */

/* A client that stopped in the middle, or never says when it has done, is believed for a while only. */
static int lively(const gate_board *board, const gate_client *client, uint64_t now) {
    uint64_t patience = 4 * client->alone > board->lease ? 4 * client->alone : board->lease;
    return now < LOAD(client->touched) + patience;
}

static int latency_runs(const gate_board *board, const gate_client *client, uint64_t now) {
    return lively(board, client, now) && gate_client_running(client);
}

static void see_latency(const gate_board *board, const gate_client *client, uint64_t now, gate_scene *scene,
                        gate_knobs *knobs) {
    scene->latency_waits |= LOAD(client->waiting) && lively(board, client, now);
    if (!latency_runs(board, client, now)) return;
    scene->latency_running = 1;
    scene->latency_work = client->work;
    if (client->alone) knobs->latency = client->alone;
    memcpy(knobs->harm, client->harm, sizeof knobs->harm);
    for (int kind = 0; kind < GATE_KINDS; kind++) {
        uint64_t beside = LOAD(client->beside[kind]);
        if (beside > scene->beside[kind]) scene->beside[kind] = beside;
    }
}

static void see_best_effort(const gate_client *client, gate_scene *scene) {
    for (uint32_t index = 0; index < LOAD(client->tracks_used); index++) {
        scene->outstanding += gate_track_in_flight_ns(&client->tracks[index]);
        scene->outstanding_count += gate_track_in_flight(&client->tracks[index]);
    }
}

/* Whoever gives no sign of life keeps nobody waiting, neither in a request nor in a phase. */
static void see_other(const gate_client *client, uint64_t now, const gate_board *board, gate_scene *scene) {
    int busy = LOAD(client->in_request) || gate_client_running(client);
    int alive = lively(board, client, now);
    uint64_t phases = alive ? client->phases : UINT64_MAX / 2;
    scene->others = 1;
    scene->other_in_request |= busy && alive;
    if (phases > scene->other_phases) scene->other_phases = phases;
}

static const uint64_t QUIET = 2000 * 1000 * 1000ull; /* ns */
enum { QUIET_EVERY = 8 };                             /* fences */

int gate_board_asked(const gate_board *board, int client, const gate_client *other, uint64_t now, uint64_t number) {
    int quiet = now > LOAD(other->touched) + QUIET;
    return gate_board_fenced(board, client, other) && (!quiet || number % QUIET_EVERY == 0);
}

/* Streams of one process may share a hardware queue, where latency work would wait behind the fence that it
 * is to open: between threads, launches are held instead. */
int gate_board_fenced(const gate_board *board, int client, const gate_client *other) {
    const gate_client *me = &board->clients[client];
    return gate_policy_fences(board->knobs.policy) && LOAD(other->state) == GATE_LIVE &&
           other->kind == GATE_LATENCY && other->pid != me->pid && LOAD(other->can_fence) && LOAD(me->can_fence);
}

int gate_board_holds(const gate_board *board) {
    for (uint32_t index = 0; index < LOAD(board->places); index++) {
        const gate_client *client = &board->clients[index];
        int latency = LOAD(client->state) == GATE_LIVE && client->kind == GATE_LATENCY;
        if (latency && !LOAD(client->can_fence)) return 1;
    }
    return 0;
}

int gate_board_paced(const gate_board *board) {
    return board->search_limit > 0 && gate_policy_fences(board->knobs.policy);
}

static int anybody_at_work(const gate_board *board, uint64_t now) {
    for (uint32_t index = 0; index < LOAD(board->places); index++) {
        const gate_client *client = &board->clients[index];
        int latency = LOAD(client->state) == GATE_LIVE && client->kind == GATE_LATENCY;
        if (latency && now < LOAD(client->touched) + RECENT) return 1;
    }
    return 0;
}

uint64_t gate_board_pace(gate_board *board, int client, uint64_t now, uint64_t elapsed, uint64_t credit) {
    gate_client *me = &board->clients[client];
    gate_knobs knobs = gate_board_knobs(board);
    uint64_t window = gate_window(&knobs);
    credit += (uint64_t)(board->duty * (double)elapsed);
    uint32_t paces = LOAD(me->paces), permitted = LOAD(me->permitted);
    if (!gate_board_paced(board) || !anybody_at_work(board, now)) permitted = paces;
    while (credit >= window && permitted != paces) permitted++, credit -= window;
    STORE(me->permitted, permitted);
    return credit < window ? credit : window; /* what was not used is not saved up */
}

void gate_board_watch(gate_board *board, uint64_t now) {
    gate_board_sweep(board);
    for (uint32_t index = 0; index < LOAD(board->places); index++) {
        gate_client *client = &board->clients[index];
        if (!LOAD(client->open) && !lively(board, client, now)) STORE(client->open, 1);
    }
}

gate_scene gate_board_look(const gate_board *board, int client, uint64_t now, gate_knobs *knobs) {
    const gate_client *me = &board->clients[client];
    gate_scene scene = {.asks = me->kind, .in_request = me->in_request, .own_phases = me->phases};
    for (uint32_t index = 0; index < LOAD(board->places); index++) {
        const gate_client *other = &board->clients[index];
        if (LOAD(other->state) != GATE_LIVE) continue;
        if (gate_board_fenced(board, client, other)) continue;
        if (other->kind == GATE_LATENCY) see_latency(board, other, now, &scene, knobs);
        if (other->kind == GATE_BEST_EFFORT && lively(board, other, now)) see_best_effort(other, &scene);
        if (other->kind != me->kind) see_other(other, now, board, &scene);
    }
    return scene;
}

/* It waits for nothing but room. Who waits for latency work to end, or was stopped, is in nobody's way. */
static int could_go(const gate_board *board, const gate_client *client, uint64_t now) {
    return LOAD(client->waiting) == 1 + GATE_WAIT_DRAIN && lively(board, client, now);
}

int gate_board_my_turn(const gate_board *board, int client, uint64_t now) {
    uint32_t places = LOAD(board->places);
    uint32_t turn = LOAD(board->turn) % places;
    for (uint32_t step = 0; step < places; step++) {
        uint32_t index = (turn + step) % places;
        const gate_client *other = &board->clients[index];
        if ((int)index == client) return 1;
        if (LOAD(other->state) == GATE_LIVE && other->kind == GATE_BEST_EFFORT && could_go(board, other, now)) return 0;
    }
    return 1;
}

void gate_board_pass_turn(gate_board *board, int client) { STORE(board->turn, (uint32_t)client + 1); }

void gate_board_charge(gate_board *board, uint64_t now, uint32_t kind, uint64_t duration) {
    for (uint32_t index = 0; index < LOAD(board->places); index++) {
        gate_client *client = &board->clients[index];
        if (LOAD(client->state) != GATE_LIVE || client->kind != GATE_LATENCY) continue;
        if (latency_runs(board, client, now)) ADD(client->beside[kind], duration);
    }
}

void gate_board_request_begins(gate_board *board, int client, uint64_t alone) {
    gate_client *me = &board->clients[client];
    gate_scene scene = {0};
    for (uint32_t index = 0; index < LOAD(board->places); index++)
        if (LOAD(board->clients[index].state) == GATE_LIVE && board->clients[index].kind == GATE_BEST_EFFORT)
            see_best_effort(&board->clients[index], &scene);
    for (int kind = 0; kind < GATE_KINDS; kind++) STORE(me->beside[kind], 0);
    STORE(me->beside[GATE_BEFORE], scene.outstanding);
    STORE(me->alone, alone);
}

static void tune_duty(gate_board *board, gate_client *me, const gate_request *request, uint32_t launches) {
    gate_request each = *request;
    each.duration /= launches ? launches : 1;
    me->pace = gate_learn_alone(me->pace, &each);
    if (board->search_limit > 0)
        board->duty = gate_duty_step(board->duty, me->pace, board->search_limit, each.duration);
}

static void tune_threshold(gate_board *board, gate_knobs *knobs, uint64_t duration) {
    if (board->search_limit <= 0 || !board->most_sms) return;
    if (board->search.high == 0) board->search.high = board->most_sms + 1;
    uint32_t threshold = knobs->sm_threshold ? knobs->sm_threshold : board->search.high;
    board->knobs.sm_threshold =
        gate_search_step(&board->search, threshold, knobs->latency, board->search_limit, duration);
}

/* Writes only what is learnt: somebody may be setting the other knobs. */
void gate_board_request_ended(gate_board *board, int client, uint64_t duration, uint32_t launches) {
    gate_client *me = &board->clients[client];
    gate_request request = {.duration = duration};
    memcpy(request.beside, me->beside, sizeof request.beside);
    gate_knobs knobs = gate_board_knobs(board);
    memcpy(knobs.harm, me->harm, sizeof knobs.harm);
    knobs.latency = gate_learn_alone(me->alone, &request);
    gate_learn_harm(&knobs, &request);
    memcpy(me->harm, knobs.harm, sizeof me->harm);
    board->knobs.latency = me->alone = knobs.latency;
    me->last = duration;
    me->counts.busy_ns += duration;
    tune_duty(board, me, &request, launches);
    tune_threshold(board, &knobs, duration);
}

/* waiting */

void gate_board_changed(gate_board *board) {
    ADD(board->changes, 1);
    if (LOAD(board->sleepers)) syscall(SYS_futex, &board->changes, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

void gate_board_wait(gate_board *board, uint32_t seen, uint64_t ns) {
    struct timespec time = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    ADD(board->sleepers, 1);
    syscall(SYS_futex, &board->changes, FUTEX_WAIT, seen, &time, NULL, 0);
    ADD(board->sleepers, -1);
}
