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
void bind_array(nb::class_<Owner> &bound, const char *name) {
    using Values = std::array<T, GATE_KINDS>;
    bound.def_prop_rw(
        name,
        [](const Owner &owner) {
            Values values;
            std::copy_n(owner.*Field, GATE_KINDS, values.begin());
            return values;
        },
        [](Owner &owner, const Values &values) { std::copy_n(values.begin(), GATE_KINDS, owner.*Field); });
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

}  // namespace

void bind_policies(nb::module_ &m) {
    auto knobs = nb::class_<gate_knobs>(m, "Knobs")
                     .def(nb::init<const gate_knobs &>())
                     .def_prop_ro("policy", [](const gate_knobs &k) { return gate_policy_name(k.policy); })
                     .def_ro("sms", &gate_knobs::sms)
                     .def_rw("latency", &gate_knobs::latency)
                     .def_rw("duration_fraction", &gate_knobs::duration_fraction)
                     .def_rw("sm_threshold", &gate_knobs::sm_threshold)
                     .def_rw("depth", &gate_knobs::depth)
                     .def_rw("window", &gate_knobs::window)
                     .def_rw("allowance", &gate_knobs::allowance);
    bind_array<&gate_knobs::harm, gate_knobs, double>(knobs, "harm");
    auto scene = nb::class_<gate_scene>(m, "Scene")
                     .def("__init__", [](gate_scene *s) { new (s) gate_scene{}; })
                     .def_rw("asks", &gate_scene::asks)
                     .def_rw("others", &gate_scene::others)
                     .def_rw("latency_running", &gate_scene::latency_running)
                     .def_rw("latency_work", &gate_scene::latency_work)
                     .def_rw("outstanding", &gate_scene::outstanding)
                     .def_rw("outstanding_count", &gate_scene::outstanding_count)
                     .def_rw("in_request", &gate_scene::in_request)
                     .def_rw("other_in_request", &gate_scene::other_in_request)
                     .def_rw("latency_waits", &gate_scene::latency_waits)
                     .def_rw("own_phases", &gate_scene::own_phases)
                     .def_rw("other_phases", &gate_scene::other_phases);
    bind_array<&gate_scene::beside, gate_scene, std::uint64_t>(scene, "beside");
    nb::class_<gate_work>(m, "Work")
        .def(
            "__init__",
            [](gate_work *w, std::uint64_t duration, std::uint32_t sms, std::uint32_t kind) {
                if (kind >= GATE_KINDS) throw std::invalid_argument("kind must be one of the gate's");
                new (w) gate_work{duration, sms, kind};
            },
            nb::arg("duration") = 0, nb::arg("sms") = 0, nb::arg("kind") = 0)
        .def_ro("duration", &gate_work::duration)
        .def_ro("sms", &gate_work::sms)
        .def_ro("kind", &gate_work::kind);
    m.def(
        "defaults",
        [](const std::string &policy, std::uint32_t sms) { return gate_defaults(policy_number(policy), sms); },
        nb::arg("policy"), nb::arg("sms"));
    m.def("decide", [](const gate_knobs &knobs, const gate_scene &scene, const gate_work &work) {
        return gate_verdict_name(gate_decide(&knobs, &scene, &work));
    });
}

void bind_learning(nb::module_ &m) {
    m.def(
        "learn_alone",
        [](std::uint64_t alone, std::uint64_t duration, const Sums &beside) {
            const gate_request ended = request(duration, beside);
            return gate_learn_alone(alone, &ended);
        },
        nb::arg("alone"), nb::arg("duration"), nb::arg("beside"));
    m.def(
        "learn_harm",
        [](gate_knobs &knobs, std::uint64_t duration, const Sums &beside) {
            const gate_request ended = request(duration, beside);
            gate_learn_harm(&knobs, &ended);
        },
        nb::arg("knobs"), nb::arg("duration"), nb::arg("beside"));
    nb::class_<gate_search>(m, "Search")
        .def(
            "__init__",
            [](gate_search *s, std::uint32_t low, std::uint32_t high) { new (s) gate_search{low, high, 0, 0}; },
            nb::arg("low"), nb::arg("high"))
        .def_ro("low", &gate_search::low)
        .def_ro("high", &gate_search::high)
        .def(
            "step",
            [](gate_search &s, std::uint32_t threshold, std::uint64_t alone, double limit, std::uint64_t duration) {
                return gate_search_step(&s, threshold, alone, limit, duration);
            },
            nb::arg("threshold"), nb::arg("alone"), nb::arg("limit"), nb::arg("duration"));
    nb::class_<gate_throttle>(m, "Throttle")
        .def(
            "__init__", [](gate_throttle *t, double duty) { new (t) gate_throttle{duty, 0.0, 0}; }, nb::arg("duty"))
        .def_ro("duty", &gate_throttle::duty)
        .def(
            "step",
            [](gate_throttle &t, std::uint64_t pace, double limit, std::uint64_t duration) {
                gate_throttle_step(&t, &pace, limit, duration);
                return pace;
            },
            nb::arg("pace"), nb::arg("limit"), nb::arg("duration"));
}
