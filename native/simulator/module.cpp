// astrarium._simulator: arrays of a simulation in, a finished run out; setups and the twins of policies.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "simulator/bind_live.h"
#include "simulator/columns.h"
#include "simulator/run.h"

namespace nb = nanobind;

namespace astrarium {
namespace {

// Called without the interpreter's lock: takes it to pass the time on and to hear an interrupt.
std::function<void(Time)> ticker(nb::object progress) {
  return [progress = std::move(progress)](Time now) {
    nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(now);
  };
}

nb::dict simulate_serving(const Setup& setup, const Truth& truth, const Parameters& parameters, Column<Time> time,
                          Column<Time> deadline, Column<std::int32_t> model, Column<Time> work, Time warmup,
                          std::vector<std::int64_t> bad_limits, nb::object progress,
                          std::optional<Column<std::int32_t>> application, std::optional<Column<bool>> profiled,
                          Time profiler_delay, std::optional<Column<std::int32_t>> length,
                          std::optional<Column<std::int32_t>> bucket) {
  const RequestColumns columns{time, deadline, model, work, application, profiled, length, bucket};
  check_setup(setup);
  check_truth(setup, truth, work.size(), time.size());
  check_columns(setup, columns);
  if (!bad_limits.empty() && bad_limits.size() != setup.models.size())
    throw std::invalid_argument("bad_limits must have one number for each model, or none at all");
  const Arrivals arrivals = columns.arrivals();
  const RunOptions options{warmup, std::move(bad_limits), profiler_delay, ticker(std::move(progress))};
  std::unique_ptr<Books> books;
  {
    nb::gil_scoped_release release;
    books = run(setup, truth, parameters, arrivals, options);
  }
  return record(std::move(*books));
}

// As astrarium.serving.contract.Together has them.
Together together_of(const std::string& name) {
  if (name == "padded") return Together::kPadded;
  if (name == "bucket") return Together::kBucket;
  if (name == "length") return Together::kLength;
  throw std::invalid_argument("together: expected padded, bucket or length, got " + name);
}

std::vector<std::string> reasons() { return {"", "expired", "sacrificed", "unserved"}; }

}  // namespace
}  // namespace astrarium

NB_MODULE(_simulator, m) {
  using namespace astrarium;
  using namespace nb::literals;
  m.doc() = "The simulator in native code: arrays in, a finished run out; setups, and twins that decide live.";
  nb::class_<Dynamic>(
      m, "Dynamic",
      "What is known of a model whose requests take unequal times: a batch of k takes c0 + c1 k times the "
      "longest, and history holds single times by application, rising.")
      .def(nb::init<Time, double, std::vector<std::vector<Time>>>(), "c0"_a, "c1"_a, "history"_a);
  nb::class_<Lengths>(m, "Lengths",
                      "How long batches take by the bucket that lengths are rounded up to, and who can share a run.")
      .def(
          "__init__",
          [](Lengths* self, std::vector<std::int64_t> longest, std::vector<std::vector<Time>> latency,
             const std::string& together) {
            new (self) Lengths{std::move(longest), std::move(latency), together_of(together)};
          },
          "longest"_a, "latency"_a, "together"_a);
  nb::class_<ByLength>(m, "ByLength", "How long batches really take, by length and size, on one kind of GPU.")
      .def(
          "__init__",
          [](ByLength* self, std::vector<std::int64_t> lengths, std::vector<std::vector<Time>> times, bool rounded,
             const std::string& together) {
            new (self) ByLength{std::move(lengths), std::move(times), rounded, together_of(together)};
          },
          "lengths"_a, "times"_a, "rounded"_a, "together"_a);
  nb::class_<Model>(m, "Model", "A model's objective, and how long batches of 0, 1, ... take; the last is forever.")
      .def(nb::init<Time, std::vector<Time>>(), "slo"_a, "latency"_a)
      .def(nb::init<Time, std::vector<Time>, std::optional<Dynamic>, std::optional<Lengths>>(), "slo"_a, "latency"_a,
           "dynamic"_a.none(), "lengths"_a.none() = nb::none());
  nb::class_<Network>(m, "Network", "Times on the way: of an order, more for each request in it, and of an answer.")
      .def(nb::init<Time, Time, Time>(), "control"_a, "data"_a, "response"_a);
  nb::class_<Setup>(m, "Setup", "What a policy knows before the first event.")
      .def(nb::init<std::vector<Model>, int, Network, Time>(), "models"_a, "gpus"_a, "network"_a, "preemption_cost"_a);
  nb::class_<Truth>(
      m, "Truth",
      "How long batches really take: tables by kind of GPU, model and size, or the terms of dynamic models "
      "(0 in dynamic: none), or what is known by length.")
      .def(nb::init<std::vector<int>, std::vector<std::vector<std::vector<Time>>>, std::vector<int>, std::vector<Time>,
                    std::vector<double>, std::vector<std::vector<std::optional<ByLength>>>>(),
           "kind_of_gpu"_a, "tables"_a, "dynamic"_a, "c0"_a, "c1"_a,
           "by_length"_a = std::vector<std::vector<std::optional<ByLength>>>());
  nb::class_<Parameters>(m, "Parameters", "The policy whose twin decides, by name, and its parameters by type.")
      .def(nb::init<std::string, std::map<std::string, std::int64_t>, std::map<std::string, double>,
                    std::map<std::string, std::vector<std::int64_t>>>(),
           "policy"_a, "integers"_a, "reals"_a, "lists"_a);
  m.def(
      "simulate_serving", &simulate_serving, "setup"_a, "truth"_a, "parameters"_a, "time"_a, "deadline"_a, "model"_a,
      "work"_a, "warmup"_a, "bad_limits"_a, "progress"_a = nb::none(), "application"_a = nb::none(),
      "profiled"_a = nb::none(), "profiler_delay"_a = 0, "length"_a = nb::none(), "bucket"_a = nb::none(),
      nb::sig("def simulate_serving(setup: Setup, truth: Truth, parameters: Parameters, time: Ints, deadline: Ints, "
              "model: Ints, work: Ints, warmup: int, bad_limits: collections.abc.Sequence[int], "
              "progress: collections.abc.Callable[[int], None] | None = None, application: Ints | None = None, "
              "profiled: Bools | None = None, profiler_delay: int = 0, length: Ints | None = None, "
              "bucket: Ints | None = None) -> dict[str, typing.Any]"),
      "Simulate the requests in these columns, and return the columns of the run's record. It ends early once a model "
      "has more bad requests than its limit, where limits are given.");
  m.def("reasons", &reasons, "Return the reasons for which requests are dropped, by the numbers that records hold.");
  m.def("event_kinds", &event_kinds, nb::sig("def event_kinds() -> tuple[str, ...]"),
        "Return the names of events by the numbers that native code knows their kinds by.");
  nb::class_<LivePolicy>(m, "LivePolicy", "A policy's twin that decides on the wall clock; the caller keeps the books.")
      .def(
          "__init__",
          [](LivePolicy* self, const Setup& setup, const Parameters& parameters) {
            check_setup(setup);
            new (self) LivePolicy(setup, parameters, &make_policy);
          },
          "setup"_a, "parameters"_a)
      .def("decide", &decide, "now"_a, "arrivals"_a, "events"_a,
           nb::sig("def decide(self, now: int, arrivals: list[ArrivalRow], events: list[EventRow]) -> list[ActionRow]"),
           "Tell the twin what has happened, and return what it does: a batch is sent (0), a request dropped (1), a "
           "timer "
           "set (2), or a batch stopped (3).");
}
