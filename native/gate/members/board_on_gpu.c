#include "members/board_on_gpu.h"

#include <stdio.h>

#include "driver/driver.h"

static const gate_board *board;
static CUdeviceptr board_on_gpu; /* 0: the GPU cannot reach it */
static CUcontext context;        /* in which it was made known */

static int registered(gate_board *shared) {
    const driver_table *real = driver();
    board = shared;
    return real->write_value && real->wait_value && real->host_register &&
           real->host_register(shared, sizeof *shared, CU_HOST_REGISTER_PORTABLE_MAPPED) == CUDA_SUCCESS &&
           real->host_pointer(&board_on_gpu, shared, 0) == CUDA_SUCCESS;
}

static int registered_or_said(gate_board *shared) {
    if (registered(shared)) return 1;
    board_on_gpu = 0;
    fputs(
        "astrarium gate: the GPU cannot write to shared memory; launches are held, and work in flight is not "
        "bounded\n",
        stderr);
    return 0;
}

/* Needs a context, which a thread that is only being marked may not have yet. The very first launch may be into
 * a graph, which this must not break. */
int gpu_meets_board(gate_board *shared) {
    static int tried;
    const driver_table *real = driver();
    CUdevice device;
    int mode = CU_CAPTURE_RELAXED;
    if (tried || real->context_device(&device) != CUDA_SUCCESS) return 0;
    if (__atomic_exchange_n(&tried, 1, __ATOMIC_ACQ_REL)) return 0;
    if (real->exchange_mode) real->exchange_mode(&mode);
    if (real->context_current) real->context_current(&context);
    int reached = registered_or_said(shared);
    if (real->exchange_mode) real->exchange_mode(&mode);
    return reached;
}

int gpu_reaches_board(void) { return board_on_gpu != 0; }
void gpu_forgets_board(void) { board_on_gpu = 0; }

static CUdeviceptr address_of(const void *field) {
    return board_on_gpu ? board_on_gpu + (CUdeviceptr)((const char *)field - (const char *)board) : 0;
}

int gpu_write(CUstream stream, const uint32_t *word, uint32_t value) {
    CUdeviceptr at = address_of(word);
    return at && driver()->write_value(stream, at, value, 0) == CUDA_SUCCESS;
}

int gpu_await(CUstream stream, const uint32_t *word, uint32_t value, unsigned how) {
    CUdeviceptr at = address_of(word);
    return at && driver()->wait_value && driver()->wait_value(stream, at, value, how) == CUDA_SUCCESS;
}

CUstream gpu_own_stream(void) {
    const driver_table *real = driver();
    CUstream stream = NULL;
    if (!board_on_gpu || !real->context_use || real->context_use(context) != CUDA_SUCCESS) return NULL;
    return real->stream_create_priority(&stream, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS ? stream : NULL;
}
