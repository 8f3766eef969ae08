// The gate's policies, what they learn, and their simulation, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "simulate.h"

namespace nb = nanobind;

void bind_board(nb::module_& m);  // bind_board.cpp

namespace gate::sim {
namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sums = std::array<std::uint64_t, GATE_KINDS>;

template <class T>
nb::object column(std::vector<T>&& values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

// Fixed C arrays as lists.
template <auto Field, class Owner, class T>
void bind_array(nb::class_<Owner>& bound, const char* name) {
  using Values = std::array<T, GATE_KINDS>;
  bound.def_prop_rw(
      name,
      [](const Owner& owner) {
        Values values;
        std::copy_n(owner.*Field, GATE_KINDS, values.begin());
        return values;
      },
      [](Owner& owner, const Values& values) { std::copy_n(values.begin(), GATE_KINDS, owner.*Field); });
}

std::uint32_t policy_number(const std::string& name) {
  const int number = gate_policy_number(name.c_str());
  if (number >= 0) return static_cast<std::uint32_t>(number);
  throw std::invalid_argument("no policy of the gate: " + name);
}

void bind_policies(nb::module_& m) {
  auto knobs = nb::class_<gate_knobs>(m, "Knobs")
                   .def(nb::init<const gate_knobs&>())
                   .def_prop_ro("policy", [](const gate_knobs& k) { return gate_policy_name(k.policy); })
                   .def_ro("sms", &gate_knobs::sms)
                   .def_rw("latency", &gate_knobs::latency)
                   .def_rw("duration_fraction", &gate_knobs::duration_fraction)
                   .def_rw("sm_threshold", &gate_knobs::sm_threshold)
                   .def_rw("depth", &gate_knobs::depth)
                   .def_rw("window", &gate_knobs::window)
                   .def_rw("allowance", &gate_knobs::allowance);
  bind_array<&gate_knobs::harm, gate_knobs, double>(knobs, "harm");
  auto scene = nb::class_<gate_scene>(m, "Scene")
                   .def("__init__", [](gate_scene* s) { new (s) gate_scene{}; })
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
      .def("__init__", [](gate_work* w, std::uint64_t duration, std::uint32_t sms, std::uint32_t kind) {
        if (kind >= GATE_KINDS) throw std::invalid_argument("kind must be one of the gate's");
        new (w) gate_work{duration, sms, kind};
      }, nb::arg("duration") = 0, nb::arg("sms") = 0, nb::arg("kind") = 0)
      .def_ro("duration", &gate_work::duration)
      .def_ro("sms", &gate_work::sms)
      .def_ro("kind", &gate_work::kind);
  m.def("defaults", [](const std::string& policy, std::uint32_t sms) {
    return gate_defaults(policy_number(policy), sms);
  }, nb::arg("policy"), nb::arg("sms"));
  m.def("decide", [](const gate_knobs& knobs, const gate_scene& scene, const gate_work& work) {
    return gate_verdict_name(gate_decide(&knobs, &scene, &work));
  });
}

gate_request request(std::uint64_t duration, const Sums& beside) {
  gate_request made{duration, {}};
  std::copy(beside.begin(), beside.end(), made.beside);
  return made;
}

void bind_learning(nb::module_& m) {
  m.def("learn_alone", [](std::uint64_t alone, std::uint64_t duration, const Sums& beside) {
    const gate_request ended = request(duration, beside);
    return gate_learn_alone(alone, &ended);
  }, nb::arg("alone"), nb::arg("duration"), nb::arg("beside"));
  m.def("learn_harm", [](gate_knobs& knobs, std::uint64_t duration, const Sums& beside) {
    const gate_request ended = request(duration, beside);
    gate_learn_harm(&knobs, &ended);
  }, nb::arg("knobs"), nb::arg("duration"), nb::arg("beside"));
  nb::class_<gate_search>(m, "Search")
      .def("__init__", [](gate_search* s, std::uint32_t low, std::uint32_t high) {
        new (s) gate_search{low, high, 0, 0};
      }, nb::arg("low"), nb::arg("high"))
      .def_ro("low", &gate_search::low)
      .def_ro("high", &gate_search::high)
      .def("step", [](gate_search& s, std::uint32_t threshold, std::uint64_t alone, double limit,
                      std::uint64_t duration) { return gate_search_step(&s, threshold, alone, limit, duration); },
           nb::arg("threshold"), nb::arg("alone"), nb::arg("limit"), nb::arg("duration"));
  nb::class_<gate_throttle>(m, "Throttle")
      .def("__init__", [](gate_throttle* t, double duty) { new (t) gate_throttle{duty, 0.0, 0}; }, nb::arg("duty"))
      .def_ro("duty", &gate_throttle::duty)
      .def("step", [](gate_throttle& t, std::uint64_t pace, double limit, std::uint64_t duration) {
        gate_throttle_step(&t, &pace, limit, duration);
        return pace;
      }, nb::arg("pace"), nb::arg("limit"), nb::arg("duration"));
}

// Columns of equal length: one row a kernel of a request, in order.
std::vector<Kernel> kernels(Column<std::int64_t> duration, Column<std::int32_t> sms, Column<std::int32_t> kind,
                            Column<double> compute, Column<double> memory, Column<std::int32_t> phase) {
  const std::size_t count = duration.size();
  if (sms.size() != count || kind.size() != count || compute.size() != count || memory.size() != count ||
      phase.size() != count)
    throw std::invalid_argument("the columns of kernels must have the same length");
  std::vector<Kernel> made(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (duration(i) < 0 || sms(i) < 0 || kind(i) < 0) throw std::invalid_argument("a kernel's numbers are below 0");
    made[i].work = {static_cast<std::uint64_t>(duration(i)), static_cast<std::uint32_t>(sms(i)),
                    static_cast<std::uint32_t>(kind(i))};
    made[i].use = {compute(i), memory(i)};
    made[i].phase = phase(i);
  }
  return made;
}

void bind_client(nb::module_& m) {
  nb::class_<ClientSpec>(m, "Client")
      .def("__init__", [](ClientSpec* c, bool latency, Column<std::int64_t> duration, Column<std::int32_t> sms,
                          Column<std::int32_t> kind, Column<double> compute, Column<double> memory,
                          Column<std::int32_t> phase, std::optional<std::vector<Time>> arrivals,
                          std::int64_t requests, Time gap, bool graph, bool synchronize, std::int64_t ahead,
                          Time between) {
        new (c) ClientSpec{latency ? GATE_LATENCY : GATE_BEST_EFFORT,
                           kernels(duration, sms, kind, compute, memory, phase),
                           std::move(arrivals), requests, gap, graph, synchronize, ahead, between};
      }, nb::arg("latency"), nb::arg("duration"), nb::arg("sms"), nb::arg("kind"), nb::arg("compute"),
         nb::arg("memory"), nb::arg("phase"), nb::kw_only(), nb::arg("arrivals").none() = nb::none(),
         nb::arg("requests") = 0, nb::arg("gap") = 0, nb::arg("graph") = false, nb::arg("synchronize") = true,
         nb::arg("ahead") = 1024, nb::arg("between") = 0);
}

nb::dict client_columns(ClientResult&& client) {
  nb::dict out;
  out["arrival"] = column(std::move(client.arrival));
  out["begin"] = column(std::move(client.begin));
  out["end"] = column(std::move(client.end));
  out["launches"] = client.launches;
  out["kernels"] = client.kernels;
  out["held_ns"] = client.held_ns;
  nb::dict held;
  for (std::uint32_t verdict = 1; verdict < GATE_VERDICTS; ++verdict)
    held[gate_verdict_name(verdict)] = client.held[verdict];
  out["held"] = held;
  return out;
}

nb::dict simulated(const Setting& setting, const std::vector<ClientSpec>& clients) {
  Result result;
  {
    nb::gil_scoped_release release;
    result = simulate(setting, clients);
  }
  nb::list columns;
  for (ClientResult& client : result.clients) columns.append(client_columns(std::move(client)));
  const auto whole = static_cast<double>(std::max<Time>(result.ended, 1));
  nb::dict out, usage;
  usage["sms"] = result.usage.sms / whole;
  usage["compute"] = result.usage.compute / whole;
  usage["memory"] = result.usage.memory / whole;
  out["clients"] = columns;
  out["usage"] = usage;
  out["ended"] = result.ended;
  out["knobs"] = result.knobs;
  return out;
}

void bind_simulation(nb::module_& m) {
  const GpuSpec gpu;
  const Setting setting;
  m.def("simulate", [](const gate_knobs& knobs, const std::vector<ClientSpec>& clients, std::optional<Time> until,
                       double shared_capacity, bool priority, Time seen, Time relaunch, Time fence,
                       bool one_interpreter, bool learn, double search_limit) {
    return simulated({{knobs.sms, shared_capacity, priority}, knobs, until.value_or(kNever), seen, relaunch,
                      fence, one_interpreter, learn, search_limit}, clients);
  }, nb::arg("knobs"), nb::arg("clients"), nb::kw_only(), nb::arg("until").none() = nb::none(),
     nb::arg("shared_capacity") = gpu.shared_capacity,
     nb::arg("priority") = gpu.priority, nb::arg("seen") = setting.seen, nb::arg("relaunch") = setting.relaunch,
     nb::arg("fence") = setting.fence,
     nb::arg("one_interpreter") = setting.one_interpreter, nb::arg("learn") = setting.learn,
     nb::arg("search_limit") = setting.search_limit);
}

}  // namespace
}  // namespace gate::sim

NB_MODULE(_gate, m) {
  gate::sim::bind_policies(m);
  gate::sim::bind_learning(m);
  gate::sim::bind_client(m);
  gate::sim::bind_simulation(m);
  bind_board(m);
}
