/* A latency client's own fence: closed while its requests run, and opened by the GPU when it is through with them. */
#ifndef ASTRARIUM_GATE_OWN_FENCE_H
#define ASTRARIUM_GATE_OWN_FENCE_H

#include "members/members.h"

/* A request begins: from now on best effort of other processes stops there. */
void own_fence_close(member *me);
/* A request has ended on this stream. With one stream the GPU opens the fence there. With several, when it is through
 * with all of them. */
void own_fence_open(member *me, member_stream *stream);

#endif
