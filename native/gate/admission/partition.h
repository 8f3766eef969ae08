/* A part of the GPU's SMs for best-effort kernels that are too long to wait for (a green context). */
#ifndef ASTRARIUM_GATE_PARTITION_H
#define ASTRARIUM_GATE_PARTITION_H

#include "admission/launch.h"

/* Launches on a stream that has *sms* SMs, in the order of the launch's own stream. */
CUresult partition_launch(const launch *made, uint32_t sms);

#endif
