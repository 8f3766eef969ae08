#define _GNU_SOURCE
#include "board/waiting.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "board/atomics.h"

static struct timespec as_time(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
}

void gate_nap(uint64_t ns) {
    struct timespec time = as_time(ns);
    nanosleep(&time, NULL);
}

void gate_board_changed(gate_board *board) {
    ADD(board->changes, 1);
    if (LOAD(board->sleepers)) syscall(SYS_futex, &board->changes, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

void gate_board_wait(gate_board *board, uint32_t seen, uint64_t ns) {
    struct timespec time = as_time(ns);
    ADD(board->sleepers, 1);
    syscall(SYS_futex, &board->changes, FUTEX_WAIT, seen, &time, NULL, 0);
    ADD(board->sleepers, -1);
}
