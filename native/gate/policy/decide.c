#include "policy/decide.h"

#include <stddef.h>
#include <string.h>

typedef gate_verdict rule(const gate_knobs *, const gate_scene *, const gate_work *);

static gate_verdict always(const gate_knobs *knobs, const gate_scene *scene, const gate_work *work) {
    (void)knobs;
    (void)scene;
    (void)work;
    return GATE_GO;
}

/* One request or iteration at a time; latency work goes first where both wait. */
static gate_verdict temporal(const gate_knobs *knobs, const gate_scene *scene, const gate_work *work) {
    (void)knobs;
    (void)work;
    if (scene->in_request) return GATE_GO;
    int after_you = scene->asks == GATE_BEST_EFFORT && scene->latency_waits;
    return scene->other_in_request || after_you ? GATE_WAIT_TURN : GATE_GO;
}

static gate_verdict kernel_temporal(const gate_knobs *knobs, const gate_scene *scene, const gate_work *work) {
    (void)knobs;
    (void)work;
    int held = scene->asks == GATE_BEST_EFFORT && scene->latency_running;
    return held ? GATE_WAIT_LATENCY : GATE_GO;
}

/* Phases alternate between forward and backward. The best-effort job is one phase behind: it runs its phase j
 * beside the other's phase j + 1, and neither begins a phase before the other's last one has ended. */
static gate_verdict tick_tock(const gate_knobs *knobs, const gate_scene *scene, const gate_work *work) {
    (void)knobs;
    (void)work;
    if (!scene->others) return GATE_GO;
    int mine = scene->asks == GATE_LATENCY ? scene->own_phases <= scene->other_phases + 1
                                           : scene->own_phases < scene->other_phases;
    return mine ? GATE_GO : GATE_WAIT_TURN;
}

/* Restricted REEF, as Orion's authors rebuilt it: a bounded queue, and padding with kernels that fit into the
 * SMs left free and do not outlast the latency kernel. */
static gate_verdict reef_n(const gate_knobs *knobs, const gate_scene *scene, const gate_work *work) {
    if (scene->asks == GATE_LATENCY) return GATE_GO;
    if (scene->outstanding_count >= knobs->depth) return GATE_WAIT_DRAIN;
    if (!scene->latency_running) return GATE_GO;
    const gate_work *beside = &scene->latency_work;
    int fits = work->sms + beside->sms <= knobs->sms;
    int shorter = work->duration && work->duration <= beside->duration;
    return fits && shorter ? GATE_GO : GATE_WAIT_LATENCY;
}

static int different(uint32_t one, uint32_t other) {
    return one == GATE_UNKNOWN || other == GATE_UNKNOWN || one != other;
}

/* Listing 1. The first kernel after a drain always goes: it may be longer than the whole budget. */
static gate_verdict orion(const gate_knobs *knobs, const gate_scene *scene, const gate_work *work) {
    if (scene->asks == GATE_LATENCY) return GATE_GO;
    double budget = knobs->duration_fraction * (double)knobs->latency;
    if (scene->outstanding && (double)scene->outstanding > budget) return GATE_WAIT_DRAIN;
    if (!scene->latency_running) return GATE_GO;
    uint32_t threshold = knobs->sm_threshold ? knobs->sm_threshold : knobs->sms;
    int small = work->duration && work->sms < threshold;
    return small && different(scene->latency_work.kind, work->kind) ? GATE_GO : GATE_WAIT_LATENCY;
}

static const double WINDOW_SHARE = 0.1; /* of a request's latency */
static const uint64_t LEAST_WINDOW = 50 * 1000ull, MOST_WINDOW = 500 * 1000ull;

uint64_t gate_window_for(uint64_t given, uint64_t latency) {
    if (given) return given;
    uint64_t window = (uint64_t)(WINDOW_SHARE * (double)latency);
    return window < LEAST_WINDOW ? LEAST_WINDOW : window > MOST_WINDOW ? MOST_WINDOW : window;
}

uint64_t gate_window(const gate_knobs *knobs) { return gate_window_for(knobs->window, knobs->latency); }

int gate_policy_holds_latency(uint32_t policy) { return policy == GATE_TEMPORAL || policy == GATE_TICK_TOCK; }

int gate_policy_tracks(uint32_t policy) {
    return policy != GATE_STREAMS && policy != GATE_STREAM_PRIORITY && policy != GATE_MPS;
}

int gate_policy_fences(uint32_t policy) { return policy == GATE_ASTRARIUM; }

int gate_fence_due(uint64_t window, uint64_t since, const gate_work *work) {
    return !work->duration || since + work->duration > window;
}

static double delay_so_far(const gate_knobs *knobs, const gate_scene *scene) {
    double delay = 0.0;
    for (int kind = 0; kind < GATE_KINDS; kind++) delay += knobs->harm[kind] * (double)scene->beside[kind];
    return delay;
}

/* Our own, where there is no fence between the two (threads of one process). Without latency work: keep the
 * GPU fed, but never more in flight than a request may be made to wait for. Beside latency work: whatever it
 * has been learnt to bear, up to its allowance. */
static gate_verdict astrarium(const gate_knobs *knobs, const gate_scene *scene, const gate_work *work) {
    if (scene->asks == GATE_LATENCY || !scene->others) return GATE_GO;
    int window_open = !scene->outstanding || scene->outstanding + work->duration <= gate_window(knobs);
    if (!scene->latency_running) return window_open ? GATE_GO : GATE_WAIT_DRAIN;
    if (!work->duration) return GATE_WAIT_UNKNOWN;
    double delay = delay_so_far(knobs, scene) + knobs->harm[work->kind] * (double)work->duration;
    if (delay > knobs->allowance * (double)knobs->latency) return GATE_WAIT_LATENCY;
    return window_open ? GATE_GO : GATE_WAIT_DRAIN;
}

static const struct {
    const char *name;
    rule *rule;
} policies[GATE_POLICIES] = {
    [GATE_STREAMS] = {"streams", always},
    [GATE_STREAM_PRIORITY] = {"stream-priority", always},
    [GATE_MPS] = {"mps", always},
    [GATE_TEMPORAL] = {"temporal", temporal},
    [GATE_KERNEL_TEMPORAL] = {"kernel-temporal", kernel_temporal},
    [GATE_TICK_TOCK] = {"tick-tock", tick_tock},
    [GATE_REEF_N] = {"reef-n", reef_n},
    [GATE_ORION] = {"orion", orion},
    [GATE_ASTRARIUM] = {"astrarium", astrarium},
};

gate_verdict gate_decide(const gate_knobs *knobs, const gate_scene *scene, const gate_work *work) {
    return policies[knobs->policy < GATE_POLICIES ? knobs->policy : GATE_STREAMS].rule(knobs, scene, work);
}

const char *gate_policy_name(uint32_t policy) { return policy < GATE_POLICIES ? policies[policy].name : NULL; }

int gate_policy_number(const char *name) {
    for (int policy = 0; policy < GATE_POLICIES; policy++)
        if (strcmp(policies[policy].name, name) == 0) return policy;
    return -1;
}

const char *gate_verdict_name(uint32_t verdict) {
    static const char *const names[GATE_VERDICTS] = {"go", "latency", "drain", "unknown", "turn"};
    return verdict < GATE_VERDICTS ? names[verdict] : NULL;
}

/* Orion's 2.5 % and REEF's queue of 12 are their papers'; ours were measured (benchmarks/README.md). */
gate_knobs gate_defaults(uint32_t policy, uint32_t sms) {
    gate_knobs knobs = {.policy = policy, .sms = sms, .latency = GATE_DEFAULT_LATENCY};
    knobs.duration_fraction = 0.025;
    knobs.depth = GATE_DEFAULT_DEPTH;
    knobs.allowance = 0.05;
    knobs.harm[GATE_UNKNOWN] = knobs.harm[GATE_COMPUTE] = knobs.harm[GATE_MEMORY] = 0.5;
    knobs.harm[GATE_COPY] = 0.05;
    knobs.harm[GATE_BEFORE] = 1.0;
    return knobs;
}
