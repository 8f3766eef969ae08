#define _GNU_SOURCE
#include "board/places.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "board/atomics.h"
#include "board/reads.h"
#include "board/waiting.h"

static const uint64_t BURIED = 1; /* no birth: the first process is older than that */

/* Reads /proc/PID/stat into *text*; 0 where there is none. */
static int read_stat(int pid, char *text, size_t capacity) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t length = read(fd, text, capacity - 1);
    close(fd);
    if (length <= 0) return 0;
    text[length] = 0;
    return 1;
}

/* When a process was born, as the kernel counts it; 0: unknown. A process that has ended, and whose parent alone has
 * not asked how, is BURIED. */
static uint64_t birth_of(int pid) {
    static const char format[] = " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d %*d %llu";
    char text[1024], state;
    int threads;
    unsigned long long born;
    const char *name_end = read_stat(pid, text, sizeof text) ? strrchr(text, ')') : NULL; /* names may hold spaces */
    if (!name_end || sscanf(name_end + 1, format, &state, &threads, &born) != 3) return 0;
    return state == 'Z' && threads <= 1 ? BURIED : born;
}

/* Numbers that are no process's stand for groups of them, and some of those always live. */
static int no_process(int pid) { return pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH); }

static int dead(const gate_client *client) {
    int pid = LOAD(client->pid);
    if (no_process(pid)) return 1;
    uint64_t born = birth_of(pid);
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
    client->paces = 0;
    client->permitted = 0;
    client->fences_passed = 0;
    client->can_fence = 0;
    client->tracks_used = 0;
    memset(client->tracks, 0, sizeof client->tracks);
    STORE(client->open, 1); /* whoever stopped at it goes on */
    STORE(client->state, GATE_FREE);
}

/* Somebody may have died while he took it. What is no state at all has no owner either. */
static int owned(const gate_client *client, uint32_t state) {
    if (state == GATE_LIVE) return !dead(client);
    return (state & 3) == GATE_TAKEN && !no_process((int)(state >> 2));
}

static int clear(gate_client *client) {
    uint32_t state = LOAD(client->state);
    if (state == GATE_FREE || owned(client, state) || !take(client, state)) return 0;
    vacate(client);
    return 1;
}

int gate_board_sweep(gate_board *board) {
    int freed = 0;
    for (int index = 0; index < GATE_CLIENTS; index++) freed += clear(&board->clients[index]);
    if (freed) gate_board_changed(board);
    return freed;
}

int gate_board_keeps(const gate_board *board, int client) {
    const gate_client *mine = &board->clients[client];
    return gate_client_lives(mine) && LOAD(mine->pid) == (int32_t)getpid();
}

void gate_board_vacate_own(gate_board *board) {
    for (int index = 0; index < GATE_CLIENTS; index++) {
        gate_client *client = &board->clients[index];
        if (gate_board_keeps(board, index) && take(client, GATE_LIVE)) vacate(client);
    }
}

static int free_place(gate_board *board) {
    for (int index = 0; index < GATE_CLIENTS; index++)
        if (take(&board->clients[index], GATE_FREE)) return index;
    return -1;
}

static void note_place(gate_board *board, uint32_t index) {
    uint32_t places = LOAD(board->places);
    while (places <= index &&
           !__atomic_compare_exchange_n(&board->places, &places, index + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
}

/* Who comes late to a dance of forward and backward begins with the next forward (tick-tock). */
static uint64_t first_phase(const gate_board *board, gate_class kind) {
    uint64_t most = 0;
    for (uint32_t index = 0, places = gate_board_places(board); index < places; index++) {
        const gate_client *other = &board->clients[index];
        uint64_t phases = gate_client_phases(other);
        if (gate_client_lives(other) && other->kind != kind && phases > most) most = phases;
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
    if (gate_board_keeps(board, client) && take(&board->clients[client], GATE_LIVE)) vacate(&board->clients[client]);
    gate_board_changed(board);
}
