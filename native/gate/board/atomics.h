/* Fields of the board are read and written by several processes, and by the GPU. */
#ifndef ASTRARIUM_GATE_ATOMICS_H
#define ASTRARIUM_GATE_ATOMICS_H

#include <stdint.h>

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
/* Once, and in no order: what was checked is what is used. */
#define READ(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELEASE)
#define ADD(field, value) __atomic_add_fetch(&(field), (value), __ATOMIC_ACQ_REL)

/* Several threads of a client may count at once. */
static inline void more(uint64_t *count, uint64_t by) { __atomic_add_fetch(count, by, __ATOMIC_RELAXED); }

#endif
