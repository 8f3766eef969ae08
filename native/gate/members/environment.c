#include "members/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/profile.h"
#include "kernels/recording.h"
#include "policy/decide.h"

int environment_class(void) {
    const char *name = getenv("ASTRARIUM_GATE_CLASS");
    if (!name || !*name) return -1;
    if (strcmp(name, "latency") == 0) return GATE_LATENCY;
    if (strcmp(name, "best-effort") == 0) return GATE_BEST_EFFORT;
    fprintf(stderr, "astrarium gate: class %s: expected latency or best-effort; this program passes freely\n", name);
    return -1;
}

uint32_t environment_policy(void) {
    const char *name = getenv("ASTRARIUM_GATE_POLICY");
    int number = gate_policy_number(name ? name : "astrarium");
    if (number < 0) fprintf(stderr, "astrarium gate: there is no policy %s; astrarium it is\n", name);
    return number < 0 ? GATE_ASTRARIUM : (uint32_t)number;
}

void environment_profiles(void) {
    const char *record = getenv("ASTRARIUM_GATE_RECORD"), *profile = getenv("ASTRARIUM_GATE_PROFILE");
    if (profile) profile_read(profile);
    if (record) recording_begin(record);
    recording_meet_device();
}
