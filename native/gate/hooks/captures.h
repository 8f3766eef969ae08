/* Whether a stream captures, as the driver says. */
#ifndef ASTRARIUM_GATE_HOOKS_CAPTURES_H
#define ASTRARIUM_GATE_HOOKS_CAPTURES_H

#include "driver/cuda_abi.h"

int hook_stream_captures(CUstream stream);

#endif
