/* For programs that know of the gate: they say whose a thread is, and where a request or a phase ends. */
#include "admission/boundaries.h"
#include "hooks/hooks.h"
#include "members/members.h"

EXPORT int astrarium_gate_mark_thread(int kind, const char *name) { return members_mark_thread(kind, name); }
EXPORT void astrarium_gate_request_end(void) { client_request_end(); }
EXPORT void astrarium_gate_phase_end(void) { client_phase_end(); }
