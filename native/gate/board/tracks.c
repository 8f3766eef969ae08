#include "board/tracks.h"

#include "board/atomics.h"
#include "board/reads.h"

gate_track *gate_track_take(gate_client *client, int index) {
    if ((uint32_t)index >= LOAD(client->tracks_used)) STORE(client->tracks_used, (uint32_t)index + 1);
    return &client->tracks[index];
}

void gate_track_launch(gate_track *track, uint64_t expected_ns) {
    track->launched_ns += expected_ns;
    track->trail[(track->launched + 1) % GATE_TRAIL] = track->launched_ns;
    STORE(track->launched, track->launched + 1);
}

/* A write of who had this place before may still come: what looks more than launched is none in flight. */
static uint32_t behind(uint32_t launched, uint32_t completed) {
    return (int32_t)(launched - completed) > 0 ? launched - completed : 0;
}

uint32_t gate_track_in_flight(const gate_track *track) {
    uint32_t completed = LOAD(track->completed); /* first: it can only be behind */
    return behind(LOAD(track->launched), completed);
}

uint64_t gate_track_in_flight_ns(const gate_track *track) {
    uint32_t completed = LOAD(track->completed);
    uint32_t count = behind(LOAD(track->launched), completed);
    if (!count) return 0;
    uint64_t total = LOAD(track->launched_ns);
    uint32_t known = count < GATE_TRAIL ? completed : LOAD(track->launched) + 1; /* at least what is told apart */
    uint64_t done = LOAD(track->trail[known % GATE_TRAIL]);
    return total > done ? total - done : 0;
}

int gate_client_running(const gate_client *client) {
    for (uint32_t index = 0, tracks = gate_client_tracks(client); index < tracks; index++)
        if (gate_track_in_flight(&client->tracks[index])) return 1;
    return 0;
}
