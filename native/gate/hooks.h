/* The functions of the driver that the gate takes the place of. */
#ifndef ASTRARIUM_GATE_HOOKS_H
#define ASTRARIUM_GATE_HOOKS_H

/* Ours for the driver's function at *found*, or NULL: it stays as it is. */
void *hook_for(const void *found);

#endif
