// Groups of GPUs, simulated: arrays in, arrays filled. Meaning: placement/groups/.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <string>

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

// What all functions take first, with times of one type.
std::string scene(const std::string& times, const std::string& time) {
  return "(times: " + times + ", kind: Ints, stages: Ints, hosts: Hosts, arrival: " + times +
         ", model: Ints, slo: " + times + ", fixed: " + time + ", ";
}

// For whole nanoseconds, or for seconds: overloads with one docstring, the last one's.
template <typename Time>
void bind_first_come(nb::module_& m, const std::string& times, const std::string& time, const char* attainment_doc,
                     const char* outcomes_doc) {
  using namespace nb::literals;
  const std::string given = scene(times, time) + "by_queue: bool, another: bool, ";
  const std::string counted =
      "def attainment" + given + "first: int, last: int, good: Ints, work: " + times + ") -> None";
  const std::string ended = "def outcomes" + given + "clocks: " + times + ", keep: bool, finish: " + times +
                            ", where: Ints, work: " + times + ") -> None";
  m.def("attainment", &attainment<Time>, "times"_a, "kind"_a, "stages"_a, "hosts"_a, "arrival"_a, "model"_a, "slo"_a,
        "fixed"_a, "by_queue"_a, "another"_a, "first"_a, "last"_a, "good"_a, "work"_a, nb::sig(counted.c_str()),
        attainment_doc);
  m.def("outcomes", &outcomes<Time>, "times"_a, "kind"_a, "stages"_a, "hosts"_a, "arrival"_a, "model"_a, "slo"_a,
        "fixed"_a, "by_queue"_a, "another"_a, "clocks"_a, "keep"_a, "finish"_a, "where"_a, "work"_a,
        nb::sig(ended.c_str()), outcomes_doc);
}

}  // namespace

NB_MODULE(_placement, m) {
  using namespace nb::literals;
  m.doc() = "Groups of GPUs, simulated for placement searches: arrays in, arrays filled.";
  bind_first_come<std::int64_t>(m, "Ints", "int", "", "");
  bind_first_come<double>(
      m, "Floats", "float",
      "Count by model which of the requests from *first* to *last* are answered in time, and write each group's work.",
      "Write when each request is answered (-1: rejected) and by which group. The clocks of the stages are read, and "
      "written back where they are kept.");
  const std::string queued =
      "def waiting" + scene("Ints", "int") + "edf: bool, another: bool, finish: Ints, where: Ints, work: Ints) -> None";
  m.def("waiting", &waiting, "times"_a, "kind"_a, "stages"_a, "hosts"_a, "arrival"_a, "model"_a, "slo"_a, "fixed"_a,
        "edf"_a, "another"_a, "finish"_a, "where"_a, "work"_a, nb::sig(queued.c_str()),
        "Write the same as `outcomes` where requests wait, and run in batches as large as there are times for.");
}
