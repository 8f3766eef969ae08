#include "policy/learn.h"

static const double STEP = 0.1;         /* of the way to what would explain the request exactly */
static const double LEAST = 0.01, MOST = 4.0;
static const double RISE = 1.0 / 256.0; /* how fast "alone" follows requests that got longer */

static uint64_t beside_all(const gate_request *request) {
    uint64_t sum = 0;
    for (int kind = 0; kind < GATE_KINDS; kind++) sum += request->beside[kind];
    return sum;
}

uint64_t gate_learn_alone(uint64_t alone, const gate_request *request) {
    if (!alone) return request->duration;
    if (request->duration < alone) return (3 * alone + request->duration) / 4;
    if (beside_all(request)) return alone;
    return alone + (uint64_t)(RISE * (double)(request->duration - alone));
}

static double within(double value, double least, double most) {
    if (!(value >= least)) return least; /* also where it is no number: what was learnt once must not stay that */
    return value > most ? most : value;
}

void gate_learn_harm(gate_knobs *knobs, const gate_request *request) {
    double predicted = 0.0, energy = 0.0;
    for (int kind = 0; kind < GATE_KINDS; kind++) {
        double beside = (double)request->beside[kind];
        predicted += knobs->harm[kind] * beside;
        energy += beside * beside;
    }
    if (energy == 0.0) return;
    double error = ((double)request->duration - (double)knobs->latency) - predicted;
    for (int kind = 0; kind < GATE_KINDS; kind++) {
        double step = STEP * error * (double)request->beside[kind] / energy;
        knobs->harm[kind] = within(knobs->harm[kind] + step, LEAST, MOST);
    }
}

static const double DUTY_GAIN = 0.5, DUTY_AIM = 0.8; /* aim below the limit: requests vary */
static const double DUTY_MOST = 0.05;                 /* for one request: some are late for reasons of their own */

static double duty_step(double duty, uint64_t alone, double limit, uint64_t duration) {
    double over = (double)duration / (double)alone - 1.0;
    double step = within(DUTY_GAIN * (DUTY_AIM * limit - over), -DUTY_MOST, DUTY_MOST);
    return within(duty + step, 0.0, 1.0);
}

void gate_throttle_step(gate_throttle *throttle, uint64_t *pace, double limit, uint64_t duration) {
    uint32_t turn = throttle->requests++ % GATE_PROBE_EVERY;
    if (turn == 0) {
        throttle->kept = throttle->duty;
        throttle->duty = 0.0;
    }
    if (turn > 1 && turn <= GATE_PROBES) *pace = *pace ? (3 * *pace + duration) / 4 : duration;
    if (turn == GATE_PROBES) throttle->duty = throttle->kept;
    if (turn > GATE_PROBES && *pace) throttle->duty = duty_step(throttle->duty, *pace, limit, duration);
}

uint32_t gate_search_step(gate_search *search, uint32_t threshold, uint64_t alone, double limit, uint64_t duration) {
    search->total += duration;
    if (++search->requests < GATE_SEARCH_EVERY) return threshold;
    double mean = (double)search->total / search->requests;
    search->requests = 0;
    search->total = 0;
    if (mean > (1.0 + limit) * (double)alone)
        search->high = threshold;
    else
        search->low = threshold;
    return (search->low + search->high) / 2;
}
