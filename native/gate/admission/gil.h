/* A thread that waits in a launch may hold Python's lock, and whom it waits for may need it. */
#ifndef ASTRARIUM_GATE_GIL_H
#define ASTRARIUM_GATE_GIL_H

/* Gives the lock up if this thread holds it; hand the result to gil_restore. */
void *gil_release(void);
void gil_restore(void *state);

#endif
