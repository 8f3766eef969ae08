#include "board/knobs.h"

#include "board/atomics.h"
#include "board/reads.h"
#include "board/waiting.h"

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
            gate_nap(10000);
            continue;
        }
        if (__atomic_compare_exchange_n(&board->knobs_version, &version, version + 1, 0, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
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
