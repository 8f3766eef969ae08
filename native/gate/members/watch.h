/* A thread of ours in a process with best-effort clients: it opens the fences of the dead and gives out time. */
#ifndef ASTRARIUM_GATE_WATCH_H
#define ASTRARIUM_GATE_WATCH_H

/* Once for each process; a child of it starts its own. */
void watch_start(void);

#endif
