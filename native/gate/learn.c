#include "learn.h"

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
    return value < least ? least : value > most ? most : value;
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

static const double DUTY_GAIN = 1.0, DUTY_AIM = 0.8; /* aim below the limit: requests vary */

double gate_duty_step(double duty, uint64_t alone, double limit, uint64_t duration) {
    if (!alone) return duty;
    double over = (double)duration / (double)alone - 1.0;
    return within(duty + DUTY_GAIN * (DUTY_AIM * limit - over), 0.0, 1.0);
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
