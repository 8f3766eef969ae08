/* The board as the GPU reaches it: words of it that are written and waited for in a stream's order. */
#ifndef ASTRARIUM_GATE_BOARD_ON_GPU_H
#define ASTRARIUM_GATE_BOARD_ON_GPU_H

#include "board/layout.h"
#include "driver/cuda_abi.h"

/* Makes the board known to the GPU, once, where the calling thread has a context. Whether this call did so. */
int gpu_meets_board(gate_board *board);
int gpu_reaches_board(void);
/* In a child process: the GPU reaches nothing of it. */
void gpu_forgets_board(void);

/* In *stream*: the GPU writes a word of the board, or waits for it. 0: it cannot. */
int gpu_write(CUstream stream, const uint32_t *word, uint32_t value);
int gpu_await(CUstream stream, const uint32_t *word, uint32_t value, unsigned how);

/* A stream of our own, in a thread of our own, in the context in which the GPU met the board; NULL: there is none. */
CUstream gpu_own_stream(void);

#endif
