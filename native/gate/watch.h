/* A thread of ours in a process with best-effort clients: it opens the fences of the dead and gives out time. */
#ifndef ASTRARIUM_GATE_WATCH_H
#define ASTRARIUM_GATE_WATCH_H

void watch_start(void);
/* In a child process: threads stay behind. */
void watch_forget(void);

#endif
