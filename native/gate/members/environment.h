/* What a launcher says to this program: ASTRARIUM_GATE_CLASS, _POLICY, _PROFILE and _RECORD. */
#ifndef ASTRARIUM_GATE_ENVIRONMENT_H
#define ASTRARIUM_GATE_ENVIRONMENT_H

#include <stdint.h>

/* gate_class; -1: this program is no client. */
int environment_class(void);
/* gate_policy of a board that is made. */
uint32_t environment_policy(void);
/* Reads the kernel profile that is named, and records one where that is asked for. */
void environment_profiles(void);

#endif
