#define _GNU_SOURCE
#include "board/board.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "board/atomics.h"
#include "board/guard.h"
#include "board/reads.h"
#include "board/waiting.h"

static const uint32_t MAGIC = 0x41475445;

/* Process ids mean nothing in another container. */
static uint64_t name_space(void) {
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 ? (uint64_t)status.st_ino : 0;
}

static void fill(gate_board *board, uint32_t policy, uint32_t sms) {
    board->processes = name_space();
    board->version = GATE_BOARD_VERSION;
    board->size = sizeof *board;
    board->knobs = gate_defaults(policy, sms);
    board->lease = GATE_DEFAULT_LEASE;
    board->partition = sms * 4 / 5 / 8 * 8; /* the GPU divides its SMs by eight */
    board->chunk = GATE_DEFAULT_CHUNK;
    board->throttle = GATE_FIRST_THROTTLE;
    STORE(board->magic, MAGIC);
}

static gate_board *mapped(int fd) {
    void *at = mmap(NULL, sizeof(gate_board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at == MAP_FAILED) return NULL;
    if (gate_guard_begins(at)) return at;
    munmap(at, sizeof(gate_board));
    errno = EMFILE;
    return NULL;
}

/* Whoever made the file may still be at it: for a second, it is waited for. */
static int ready(int fd) {
    struct stat status;
    for (int tries = 0; tries < 1000; tries++, gate_nap(1000000))
        if (fstat(fd, &status) == 0 && (size_t)status.st_size >= sizeof(gate_board)) return 1;
    return 0;
}

static int own(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 && status.st_uid == geteuid();
}

static int private(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 && !(status.st_mode & (S_IWGRP | S_IWOTH));
}

static int stamped(const gate_board *board) {
    for (int tries = 0; tries < 1000 && LOAD(board->magic) != MAGIC; tries++) gate_nap(1000000);
    return LOAD(board->magic) == MAGIC;
}

/* Why the file that is there cannot be this program's board; NULL: it may be. */
static const char *unusable(int fd) {
    if (!own(fd)) return "it belongs to another user";
    if (!private(fd)) return "other users may write to it";
    return ready(fd) ? NULL : "it is no board of this version";
}

static const char *mismatch(const gate_board *board) {
    if (!stamped(board) || board->version != GATE_BOARD_VERSION || board->size != sizeof *board)
        return "it is no board of this version";
    if (board->processes == name_space()) return NULL;
    return "it was made in another container, where process ids mean something else";
}

static gate_board *mapped_or(int fd, const char **why) {
    gate_board *board = mapped(fd);
    if (!board) *why = strerror(errno);
    return board;
}

static gate_board *join_existing(const char *path, const char **why) {
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    const char *problem = fd < 0 ? strerror(errno) : unusable(fd);
    if (problem) {
        if (fd >= 0) close(fd);
        *why = problem;
        return NULL;
    }
    gate_board *board = mapped_or(fd, why);
    problem = board ? mismatch(board) : NULL;
    if (!problem) return board;
    gate_board_close(board);
    *why = problem;
    return NULL;
}

/* Its space is taken now: later there might be none, and writing to it would be a signal. */
static gate_board *make(int fd, const char *path, const char **why) {
    int problem = posix_fallocate(fd, 0, sizeof(gate_board));
    gate_board *board = NULL;
    if (problem) {
        close(fd);
        *why = strerror(problem);
    } else {
        board = mapped_or(fd, why);
    }
    if (!board) unlink(path);
    return board;
}

gate_board *gate_board_open(const char *path, uint32_t policy, uint32_t sms, const char **why) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == EEXIST) return join_existing(path, why);
    if (fd < 0) {
        *why = strerror(errno);
        return NULL;
    }
    gate_board *board = make(fd, path, why);
    if (board) fill(board, policy, sms);
    return board;
}

void gate_board_close(gate_board *board) {
    munmap(board, sizeof *board);
    gate_guard_ends(board);
}
