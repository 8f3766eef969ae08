// Groups of GPUs, simulated: arrays in, arrays filled. Meaning: placement/groups/.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <functional>

#include "placement/fcfs.h"
#include "placement/queues.h"

namespace nb = nanobind;
using namespace astrarium::placement;

namespace {

template <typename T>
using In = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <typename T>
using Out = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

// The arrays of one call, seen as the kernels see them.
template <typename Time>
struct Scene {
  Forms<Time> forms;
  Groups groups;
  Requests<Time> requests;

  // times: [kind][model][batch][stage]; kind, stages: [group]; hosts: [group][model]; slo: [model]
  Scene(const In<Time>& times, const In<std::int32_t>& kind, const In<std::int32_t>& stages,
        const In<std::uint8_t>& hosts, const In<Time>& arrival, const In<std::int32_t>& model, const In<Time>& slo) {
    check(times.ndim() == 4 && hosts.ndim() == 2 && kind.ndim() == 1 && stages.ndim() == 1, "dimensions");
    const std::size_t models = times.shape(1);
    check(hosts.shape(1) == models && slo.size() == models, "models");
    check(hosts.shape(0) == kind.size() && stages.size() == kind.size(), "groups");
    check(arrival.size() == model.size(), "requests");
    forms = {times.data(), to(models), to(times.shape(2)), to(times.shape(3))};
    groups = {to(kind.size()), kind.data(), stages.data(), hosts.data()};
    requests = {to(arrival.size()), arrival.data(), model.data(), slo.data()};
    for (std::size_t group = 0; group < kind.size(); ++group) {
      check(kind.data()[group] >= 0 && to(times.shape(0)) > kind.data()[group], "kind");
      check(stages.data()[group] >= 1 && stages.data()[group] <= forms.width, "stages");
    }
    check(forms.width <= kWidest, "at most 64 stages");
    std::int32_t wrong = 0;
    for (std::int64_t id = 0; id < requests.count; ++id)
      wrong |= static_cast<std::int32_t>(static_cast<std::uint32_t>(requests.model[id]) >= models);
    check(!wrong, "a model of each request");
  }

  static std::int64_t to(std::size_t size) { return static_cast<std::int64_t>(size); }
  static void check(bool right, const char* what) {
    if (!right) throw std::invalid_argument(what);
  }
};

// Requests answered in time by model, of those from `first` to `last`, and the work of each group.
template <typename Time>
void attainment(const In<Time>& times, const In<std::int32_t>& kind, const In<std::int32_t>& stages,
                const In<std::uint8_t>& hosts, const In<Time>& arrival, const In<std::int32_t>& model,
                const In<Time>& slo, Time fixed, bool by_queue, bool another, std::int64_t first, std::int64_t last,
                Out<std::int64_t> good, Out<Time> work) {
  const Scene<Time> scene(times, kind, stages, hosts, arrival, model, slo);
  Scene<Time>::check(good.size() == slo.size() && work.size() == kind.size(), "results");
  const Rules<Time> rules{fixed, by_queue, another, false};
  std::vector<Time> clocks(scene.groups.count * scene.forms.width);
  FirstCome<Time> runtime(scene.forms, scene.groups, rules, clocks.data(), false);
  const Requests<Time>& all = scene.requests;
  std::int64_t* in_time = good.data();
  nb::gil_scoped_release release;
  std::int32_t where;
  for (std::int64_t id = 0; id < all.count; ++id) {
    const std::int32_t of = all.model[id];
    const bool served = runtime.serve(all.arrival[id], of, all.slo[of], where) != kRejected;
    in_time[of] += served & (id >= first) & (id < last);
  }
  std::copy(runtime.work().begin(), runtime.work().end(), work.data());
}

// When each request was answered (-1: rejected) and by which group. Clocks are read, and written back.
template <typename Time>
void outcomes(const In<Time>& times, const In<std::int32_t>& kind, const In<std::int32_t>& stages,
              const In<std::uint8_t>& hosts, const In<Time>& arrival, const In<std::int32_t>& model,
              const In<Time>& slo, Time fixed, bool by_queue, bool another, Out<Time> clocks, bool keep,
              Out<Time> finish, Out<std::int32_t> where, Out<Time> work) {
  const Scene<Time> scene(times, kind, stages, hosts, arrival, model, slo);
  Scene<Time>::check(finish.size() == arrival.size() && where.size() == arrival.size(), "results");
  Scene<Time>::check(clocks.size() == kind.size() * times.shape(3) && work.size() == kind.size(), "clocks");
  const Rules<Time> rules{fixed, by_queue, another, false};
  FirstCome<Time> runtime(scene.forms, scene.groups, rules, clocks.data(), keep);
  const Requests<Time>& all = scene.requests;
  nb::gil_scoped_release release;
  for (std::int64_t id = 0; id < all.count; ++id) {
    const std::int32_t of = all.model[id];
    const Time end = runtime.serve(all.arrival[id], of, all.slo[of], where.data()[id]);
    finish.data()[id] = end == kRejected ? kRejected : end + fixed;
  }
  std::copy(runtime.work().begin(), runtime.work().end(), work.data());
}

using Nanoseconds = std::int64_t;

// The same where requests wait, in batches as large as the forms say.
void waiting(const In<Nanoseconds>& times, const In<std::int32_t>& kind, const In<std::int32_t>& stages,
             const In<std::uint8_t>& hosts, const In<Nanoseconds>& arrival, const In<std::int32_t>& model,
             const In<Nanoseconds>& slo, Nanoseconds fixed, bool edf, bool another, Out<Nanoseconds> finish,
             Out<std::int32_t> where, Out<Nanoseconds> work) {
  const Scene<Nanoseconds> scene(times, kind, stages, hosts, arrival, model, slo);
  Scene<Nanoseconds>::check(finish.size() == arrival.size() && where.size() == arrival.size(), "results");
  Scene<Nanoseconds>::check(work.size() == kind.size(), "work");
  const Rules<Nanoseconds> rules{fixed, true, another, edf};
  nb::gil_scoped_release release;
  QueuedGroups runtime(scene.forms, scene.groups, rules, scene.requests, finish.data(), where.data());
  runtime.run();
  for (std::size_t id = 0; id < finish.size(); ++id)
    if (finish.data()[id] != kRejected) finish.data()[id] += fixed;
  std::copy(runtime.work().begin(), runtime.work().end(), work.data());
}

}  // namespace

NB_MODULE(_placement, module) {
  module.def("attainment", &attainment<std::int64_t>);
  module.def("attainment", &attainment<double>);
  module.def("outcomes", &outcomes<std::int64_t>);
  module.def("outcomes", &outcomes<double>);
  module.def("waiting", &waiting);
}
