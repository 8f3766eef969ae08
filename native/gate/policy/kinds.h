/* Compute or memory bound, by a kernel's name: what libraries call things is all there is to go by without a
 * profiler's counters. */
#ifndef ASTRARIUM_GATE_KINDS_H
#define ASTRARIUM_GATE_KINDS_H

#include "policy/decide.h"

#ifdef __cplusplus
extern "C" {
#endif

gate_kind kind_by_name(const char *name);
const char *kind_name(uint32_t kind);
gate_kind kind_number(const char *name);

#ifdef __cplusplus
}
#endif
#endif
