/* How far the GPU has come with what was launched on a client's streams. */
#ifndef ASTRARIUM_GATE_BOARD_TRACKS_H
#define ASTRARIUM_GATE_BOARD_TRACKS_H

#include "board/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A track that another stream had before goes on from where it is: reports of that one may still come. */
gate_track *gate_track_take(gate_client *client, int index);
void gate_track_launch(gate_track *track, uint64_t expected_ns);
uint32_t gate_track_in_flight(const gate_track *track);
uint64_t gate_track_in_flight_ns(const gate_track *track);
/* Whether anything of it is in flight on any stream. */
int gate_client_running(const gate_client *client);

#ifdef __cplusplus
}
#endif
#endif
