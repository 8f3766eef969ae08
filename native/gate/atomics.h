/* Fields of the board are read and written by several processes, and by the GPU. */
#ifndef ASTRARIUM_GATE_ATOMICS_H
#define ASTRARIUM_GATE_ATOMICS_H

#define LOAD(field) __atomic_load_n(&(field), __ATOMIC_ACQUIRE)
#define STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELEASE)
#define ADD(field, value) __atomic_add_fetch(&(field), (value), __ATOMIC_ACQ_REL)

#endif
