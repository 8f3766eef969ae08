#define _GNU_SOURCE
#include "members/watch.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include "board/knobs.h"
#include "members/members.h"
#include "sharing/fences.h"

enum { WATCH_NS = 20 * 1000 * 1000, PACE_NS = 20 * 1000 };
static int watching;

static void pace_all(gate_board *board, uint64_t now, uint64_t elapsed) {
    for (int place = 0; place < GATE_CLIENTS; place++) {
        member *client = member_at(place);
        if (client && client->kind == GATE_BEST_EFFORT) gate_board_pace(board, place, now, elapsed, &client->pacing);
    }
}

static void beat_all(uint64_t now) {
    for (int place = 0; place < GATE_CLIENTS; place++)
        if (member_at(place)) member_beat(member_at(place), now);
}

/* Every so often. *odd* is the knobs' version, where somebody was writing them at the last look. */
static void look_after(gate_board *board, uint64_t now, uint32_t *odd) {
    gate_board_watch(board, now);
    *odd = gate_board_settle(board, *odd);
    beat_all(now);
}

/* A latency client that dies leaves its fence closed, and who stands before it on the GPU cannot look. */
static void *watch(void *given) {
    gate_board *board = given;
    uint64_t last = members_now(), watched_at = 0;
    uint32_t odd = 0;
    prctl(PR_SET_TIMERSLACK, 1);
    while (!members_leaving()) {
        uint64_t now = members_now();
        if (now >= watched_at + WATCH_NS) {
            watched_at = now;
            look_after(board, now, &odd);
        }
        pace_all(board, now, now - last);
        last = now;
        struct timespec pause = {.tv_nsec = gate_board_paced(board) ? PACE_NS : WATCH_NS};
        nanosleep(&pause, NULL);
    }
    members_open_fences();
    return NULL;
}

/* Signals are the program's, but for what we do ourselves. */
void watch_start(void) {
    pthread_t thread;
    sigset_t all, before;
    if (__atomic_exchange_n(&watching, 1, __ATOMIC_ACQ_REL)) return;
    sigfillset(&all);
    sigdelset(&all, SIGBUS); /* see board/guard.h */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, watch, members_board()) == 0)
        pthread_detach(thread);
    else
        watching = 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* In a child process: threads stay behind. */
static void in_child(void) { watching = 0; }

__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, in_child); }
