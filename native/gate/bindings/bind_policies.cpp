// The gate's policies and what they learn.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>

#include "bindings/bindings.h"
#include "policy/decide.h"
#include "policy/learn.h"

namespace nb = nanobind;

namespace {

// Fixed C arrays as lists.
template <auto Field, class Owner, class T>
void bind_array(nb::class_<Owner> &bound, const char *name, const char *doc) {
    using Values = std::array<T, GATE_KINDS>;
    bound.def_prop_rw(
        name,
        [](const Owner &owner) {
            Values values;
            std::copy_n(owner.*Field, GATE_KINDS, values.begin());
            return values;
        },
        [](Owner &owner, const Values &values) { std::copy_n(values.begin(), GATE_KINDS, owner.*Field); }, doc);
}

std::uint32_t policy_number(const std::string &name) {
    const int number = gate_policy_number(name.c_str());
    if (number >= 0) return static_cast<std::uint32_t>(number);
    throw std::invalid_argument("no policy of the gate: " + name);
}

using Sums = std::array<std::uint64_t, GATE_KINDS>;

gate_request request(std::uint64_t duration, const Sums &beside) {
    gate_request made{duration, {}};
    std::copy(beside.begin(), beside.end(), made.beside);
    return made;
}

void bind_knobs(nb::module_ &m) {
    auto knobs =
        nb::class_<gate_knobs>(m, "Knobs", "What a policy was set to and has learnt; times are nanoseconds.")
            .def(nb::init<const gate_knobs &>(), nb::arg("other"))
            .def_prop_ro(
                "policy", [](const gate_knobs &k) { return gate_policy_name(k.policy); },
                nb::sig("def policy(self) -> str"), "The name of the policy.")
            .def_ro("sms", &gate_knobs::sms, "How many SMs the GPU has.")
            .def_rw("latency", &gate_knobs::latency, "How long a latency request takes alone: learnt, or given.")
            .def_rw("duration_fraction", &gate_knobs::duration_fraction,
                    "orion: best-effort work in flight, as a share of that latency.")
            .def_rw("sm_threshold", &gate_knobs::sm_threshold,
                    "orion: best-effort kernels beside latency work need fewer SMs than this; 0: than the GPU has.")
            .def_rw("depth", &gate_knobs::depth, "reef-n: best-effort kernels in flight.")
            .def_rw("window", &gate_knobs::window,
                    "astrarium: best-effort work that a request may find before it; 0: by its latency.")
            .def_rw("allowance", &gate_knobs::allowance,
                    "astrarium: by what share of its latency a request may be delayed.");
    bind_array<&gate_knobs::harm, gate_knobs, double>(
        knobs, "harm", "astrarium: delay for each ns that a kernel of a kind runs beside a request, by kind.");
}

void bind_work(nb::module_ &m) {
    nb::class_<gate_work>(m, "Work", "What is known of a kernel, a graph or a copy before it is launched.")
        .def(
            "__init__",
            [](gate_work *w, std::uint64_t duration, std::uint32_t sms, std::uint32_t kind) {
                if (kind >= GATE_KINDS) throw std::invalid_argument("kind must be one of the gate's");
                new (w) gate_work{duration, sms, kind};
            },
            nb::arg("duration") = 0, nb::arg("sms") = 0, nb::arg("kind") = 0)
        .def_ro("duration", &gate_work::duration, "How long it runs; 0: not known yet.")
        .def_ro("sms", &gate_work::sms, "How many SMs it fills.")
        .def_ro("kind", &gate_work::kind, "The number of its kind.");
}

void bind_scene(nb::module_ &m) {
    auto scene =
        nb::class_<gate_scene>(m, "Scene", "What a client sees of the others when it asks; times are nanoseconds.")
            .def("__init__", [](gate_scene *s) { new (s) gate_scene{}; })
            .def_rw("asks", &gate_scene::asks, "The class of who asks: 0 latency, 1 best-effort.")
            .def_rw("others", &gate_scene::others,
                    "Whether anybody of the other class is there, and not behind a fence.")
            .def_rw("latency_running", &gate_scene::latency_running,
                    "Whether latency work is on the GPU, or being launched.")
            .def_rw("latency_work", &gate_scene::latency_work, "The latest latency work.")
            .def_rw("outstanding", &gate_scene::outstanding,
                    "The time of best-effort work that was launched and has not ended.")
            .def_rw("outstanding_count", &gate_scene::outstanding_count,
                    "How many kernels of best-effort work that is.")
            .def_rw("in_request", &gate_scene::in_request, "Whether who asks is in the middle of a request.")
            .def_rw("other_in_request", &gate_scene::other_in_request,
                    "Whether somebody of the other class is in the middle of one.")
            .def_rw("latency_waits", &gate_scene::latency_waits, "Whether a latency request waits for its turn.")
            .def_rw("own_phases", &gate_scene::own_phases, "How many phases of training who asks has completed.")
            .def_rw("other_phases", &gate_scene::other_phases, "How many phases the other side has completed.");
    bind_array<&gate_scene::beside, gate_scene, std::uint64_t>(
        scene, "beside", "The time of best-effort work launched beside the request that runs now, by kind.");
}

void bind_search(nb::module_ &m) {
    nb::class_<gate_search>(m, "Search", "Orion's binary search for the SM threshold, for clients that train.")
        .def(
            "__init__",
            [](gate_search *s, std::uint32_t low, std::uint32_t high) { new (s) gate_search{low, high, 0, 0}; },
            nb::arg("low"), nb::arg("high"))
        .def_ro("low", &gate_search::low, "The least threshold that is left.")
        .def_ro("high", &gate_search::high, "One more than the largest that is left.")
        .def(
            "step",
            [](gate_search &s, std::uint32_t threshold, std::uint64_t alone, double limit, std::uint64_t duration) {
                return gate_search_step(&s, threshold, alone, limit, duration);
            },
            nb::arg("threshold"), nb::arg("alone"), nb::arg("limit"), nb::arg("duration"),
            "Learn from a request that has ended, and return the threshold to use from now on; requests may be longer "
            "than "
            "alone by the share *limit*.");
}

void bind_throttle(nb::module_ &m) {
    nb::class_<gate_throttle>(m, "Throttle", "The share of time for best effort beside a client that is always busy.")
        .def(
            "__init__", [](gate_throttle *t, double duty) { new (t) gate_throttle{duty, 0.0, 0}; }, nb::arg("duty"))
        .def_ro("duty", &gate_throttle::duty, "The share; now and then 0, to see how long a request takes alone.")
        .def(
            "step",
            [](gate_throttle &t, std::uint64_t pace, double limit, std::uint64_t duration) {
                gate_throttle_step(&t, &pace, limit, duration);
                return pace;
            },
            nb::arg("pace"), nb::arg("limit"), nb::arg("duration"),
            "Learn from a request that has ended, and return how long one takes alone; 0: unknown.");
}

}  // namespace

void bind_policies(nb::module_ &m) {
    bind_knobs(m);
    bind_scene(m);
    bind_work(m);
    m.def(
        "defaults",
        [](const std::string &policy, std::uint32_t sms) { return gate_defaults(policy_number(policy), sms); },
        nb::arg("policy"), nb::arg("sms"), "Return the defaults of a policy for a GPU with so many SMs.");
    m.def(
        "decide",
        [](const gate_knobs &knobs, const gate_scene &scene, const gate_work &work) {
            return gate_verdict_name(gate_decide(&knobs, &scene, &work));
        },
        nb::arg("knobs"), nb::arg("scene"), nb::arg("work"),
        nb::sig("def decide(knobs: Knobs, scene: Scene, work: Work) -> str"),
        "Return `go` where work may be launched now, or why it must wait.");
}

void bind_learning(nb::module_ &m) {
    m.def(
        "learn_alone",
        [](std::uint64_t alone, std::uint64_t duration, const Sums &beside) {
            const gate_request ended = request(duration, beside);
            return gate_learn_alone(alone, &ended);
        },
        nb::arg("alone"), nb::arg("duration"), nb::arg("beside"),
        "Return how long requests take alone, after one that ended with best-effort work beside it.");
    m.def(
        "learn_harm",
        [](gate_knobs &knobs, std::uint64_t duration, const Sums &beside) {
            const gate_request ended = request(duration, beside);
            gate_learn_harm(&knobs, &ended);
        },
        nb::arg("knobs"), nb::arg("duration"), nb::arg("beside"),
        "Move the harm in *knobs* towards what explains the delay of such a request.");
    bind_search(m);
    bind_throttle(m);
}
