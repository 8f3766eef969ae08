#define _GNU_SOURCE
#include "admission/hold.h"

#include <sys/prctl.h>
#include <time.h>

#include "admission/gil.h"
#include "board/atomics.h"
#include "board/knobs.h"
#include "board/places.h"
#include "board/waiting.h"
#include "members/streams.h"
#include "sharing/scene.h"

static const uint64_t SPIN_NS = 2000 * 1000ull, DOZE_NS = 20ull * 1000 * 1000; /* held for so long: spin, then nap */

void hold_relax(void) {
    for (int turn = 0; turn < 16; turn++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
}

/* A held launch looks again soon: the GPU's reports wake nobody. Who waits for long looks less often, and
 * makes sure that whom he waits for is still there. */
static void pause_for(gate_board *board, uint64_t held, uint32_t seen) {
    if (held < SPIN_NS) {
        hold_relax();
        return;
    }
    if (held < DOZE_NS) {
        struct timespec nap = {.tv_nsec = 5000};
        nanosleep(&nap, NULL);
        return;
    }
    gate_board_sweep(board);
    gate_board_wait(board, seen, 1000 * 1000ull);
}

static gate_verdict asked(gate_board *board, const member *me, const gate_work *work, int *beside) {
    gate_knobs knobs = gate_board_knobs(board);
    uint64_t now = members_now();
    gate_scene scene = gate_board_look(board, me->place, now, &knobs);
    gate_verdict verdict = gate_decide(&knobs, &scene, work);
    *beside = scene.latency_running;
    int mine = me->kind == GATE_LATENCY || gate_board_my_turn(board, me->place, now);
    return verdict == GATE_GO && !mine ? GATE_WAIT_DRAIN : verdict;
}

static void begin_waiting(member *me, gate_verdict verdict) {
    gate_client *client = me->client;
    more(&client->counts.held, 1);
    more(&client->counts.waits[verdict], 1);
    streams_mark(me); /* so that it can be seen when they have ended */
    prctl(PR_SET_TIMERSLACK, 1);
    STORE(client->waiting, 1 + verdict);
}

void hold_ends(gate_board *board, const member *me) {
    if (!me->client->waiting) return;
    STORE(me->client->waiting, 0);
    if (me->kind == GATE_BEST_EFFORT) gate_board_pass_turn(board, me->place);
}

/* Who waits is alive, and says so: others may wait for him. */
static int still_held(gate_board *board, member *me, const gate_work *work, int *beside) {
    gate_verdict verdict = asked(board, me, work, beside);
    if (verdict == GATE_GO || members_leaving()) return 0;
    STORE(me->client->waiting, 1 + verdict);
    uint64_t now = members_about_now();
    STORE(me->client->touched, now);
    member_beat(me, now);
    return 1;
}

/* How long it was held. */
static uint64_t wait(gate_board *board, member *me, const gate_work *work, uint64_t began, int *beside) {
    uint64_t held = 0, report = REPORT_NS;
    uint32_t seen = LOAD(board->changes);
    while (still_held(board, me, work, beside)) {
        pause_for(board, held, seen);
        held = members_now() - began;
        if (held > report) {
            streams_report(me);
            report = held + REPORT_NS;
        }
        seen = LOAD(board->changes);
    }
    return held;
}

static int hold(gate_board *board, member *me, const gate_work *work, gate_verdict first) {
    uint64_t began = members_now();
    int beside = 0;
    begin_waiting(me, first);
    void *python = gil_release();
    uint64_t held = wait(board, me, work, began, &beside);
    prctl(PR_SET_TIMERSLACK, 0); /* as it was */
    more(&me->client->counts.held_ns, held);
    gil_restore(python);
    return beside;
}

int hold_until_admitted(gate_board *board, member *me, const gate_work *work) {
    int beside = 0;
    gate_verdict verdict = asked(board, me, work, &beside);
    return verdict == GATE_GO ? beside : hold(board, me, work, verdict);
}
