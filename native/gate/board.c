#define _GNU_SOURCE
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "atomics.h"
#include "guard.h"
#include "reads.h"

static const uint32_t MAGIC = 0x41475445;
const gate_throttle gate_first_throttle = {.duty = 0.2};

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
    board->lease = GATE_DEFAULT_LEASE;
    board->partition = sms * 4 / 5 / 8 * 8; /* the GPU divides its SMs by eight */
    board->chunk = GATE_DEFAULT_CHUNK;
    board->throttle = gate_first_throttle;
    STORE(board->magic, MAGIC);
}

static gate_board *mapped(int fd) {
    void *at = mmap(NULL, sizeof(gate_board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return NULL;
    if (gate_guard_begins(at)) return at;
    munmap(at, sizeof(gate_board));
    return errno = EMFILE, NULL;
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

static int private(int fd) {
    struct stat found;
    return fstat(fd, &found) == 0 && !(found.st_mode & (S_IWGRP | S_IWOTH));
}

static int stamped(const gate_board *board) {
    for (int tries = 0; tries < 1000 && LOAD(board->magic) != MAGIC; tries++) nap(1000000);
    return LOAD(board->magic) == MAGIC;
}

static gate_board *join_existing(const char *path, const char **why) {
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return *why = strerror(errno), NULL;
    if (!own(fd)) return close(fd), *why = "it belongs to another user", NULL;
    if (!private(fd)) return close(fd), *why = "other users may write to it", NULL;
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

void gate_board_close(gate_board *board) {
    munmap(board, sizeof *board);
    gate_guard_ends(board);
}

/* knobs: a sequence lock, since readers ask at every launch */

/* Also where a writer died in the middle: any mixture of knobs is a valid one. */
gate_knobs gate_board_knobs(const gate_board *board) {
    gate_knobs knobs;
    for (int tries = 0; tries < 1000; tries++) {
        uint32_t before = LOAD(board->knobs_version);
        knobs = board->knobs;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (!(before & 1) && before == LOAD(board->knobs_version)) break;
    }
    gate_check_knobs(&knobs);
    return knobs;
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

uint32_t gate_board_settle(gate_board *board, uint32_t odd) {
    uint32_t version = LOAD(board->knobs_version);
    if (!(version & 1)) return 0;
    if (version == odd)
        __atomic_compare_exchange_n(&board->knobs_version, &version, odd + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return version;
}

void gate_board_set_knobs(gate_board *board, const gate_knobs *knobs) {
    uint32_t version = begin_writing(board);
    board->knobs = *knobs;
    STORE(board->knobs_version, version + 1);
    gate_board_changed(board);
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
