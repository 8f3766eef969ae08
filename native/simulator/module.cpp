// astrarium._native: arrays of a simulation in, a finished run out; setups and the twins of policies.
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

#include "policies/twins.h"
#include "simulator/bind_live.h"
#include "simulator/simulate.h"
#include "testing/bind_hull.h"
#include "testing/timed_policy.h"

namespace nb = nanobind;

namespace astrarium {
namespace {

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::object column(std::vector<T>&& values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

nb::dict record(Books&& books) {
  Requests& requests = books.requests;
  Batches& batches = books.batches;
  nb::dict out;  // the columns are moved: nothing is copied
  out["outcome"] = column(std::move(requests.outcome));
  out["reason"] = column(std::move(requests.reason));
  out["done"] = column(std::move(requests.done));
  out["batch"] = column(std::move(requests.batch));
  out["batch_model"] = column(std::move(batches.model));
  out["batch_gpu"] = column(std::move(batches.gpu));
  out["batch_size"] = column(std::move(batches.size));
  out["batch_dispatched"] = column(std::move(batches.dispatched));
  out["batch_started"] = column(std::move(batches.started));
  out["batch_finished"] = column(std::move(batches.finished));
  out["batch_fate"] = column(std::move(batches.fate));
  out["bad"] = column(std::vector<std::int64_t>(books.bad()));
  return out;
}

// Called without the interpreter's lock: takes it to pass the time on and to hear an interrupt.
std::function<void(Time)> ticker(nb::object progress) {
  return [progress = std::move(progress)](Time now) {
    nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(now);
  };
}

void require(bool fits, const char* message) {
  if (!fits) throw std::invalid_argument(message);
}

// What the headers take for granted, because the Python side has made it so.
void check_setup(const Setup& setup) {
  require(setup.gpus >= 1, "gpus must be at least 1");
  require(!setup.models.empty(), "models must not be empty");
  for (const Model& model : setup.models)
    require(model.latency.size() >= 3, "latency must hold batches of 0 and 1 at least, and the end");
}

void check_truth(const Setup& setup, const Truth& truth, std::size_t work, std::size_t count) {
  const auto models = setup.models.size(), kinds = truth.tables.size();
  require(truth.kind_of_gpu.size() == static_cast<std::size_t>(setup.gpus), "kind_of_gpu: one for each GPU");
  for (const int kind : truth.kind_of_gpu)
    require(kind >= 0 && static_cast<std::size_t>(kind) < kinds, "kind_of_gpu: must have a table");
  for (const auto& tables : truth.tables) {
    require(tables.size() == models, "tables: one for each kind and model");
    for (std::size_t model = 0; model < models; ++model)
      require(tables[model].size() >= setup.models[model].latency.size(), "tables: as long as latency");
  }
  require(truth.dynamic.size() == models && truth.c0.size() == models && truth.c1.size() == models,
          "dynamic, c0 and c1: one for each model");
  const bool is_static = std::count(truth.dynamic.begin(), truth.dynamic.end(), 0) == std::ssize(truth.dynamic);
  require(is_static || work == count, "work must have the same length as time where a model is dynamic");
}

void check_columns(const Setup& setup, const Arrivals& arrivals, std::size_t deadlines, std::size_t models) {
  const auto count = static_cast<std::size_t>(arrivals.count);
  if (deadlines != count || models != count)
    throw std::invalid_argument("time, deadline and model must have the same length");
  check_arrivals(setup, arrivals);
}

template <class T>
void check_optional(const char* name, const std::optional<Column<T>>& column, std::size_t count) {
  if (column && column->size() != count)
    throw std::invalid_argument(std::string(name) + " must have the same length as time");
}

// A policy that listens may read the application of every request and the work of profiled ones.
void listen(const Setup& setup, const Truth& truth, const Arrivals& arrivals, Books& books, Time delay) {
  require(arrivals.count == 0 || (arrivals.application && arrivals.profiled),
          "application and profiled must be given: the policy listens to the profiler");
  for (std::int64_t i = 0; i < arrivals.count; ++i) {
    const auto model = static_cast<std::size_t>(arrivals.model[i]);
    const auto& known = setup.models[model].dynamic;
    const std::size_t applications = known ? known->history.size() : 1;
    const auto application = static_cast<std::size_t>(arrivals.application[i]);
    require(application < applications, "application must be one of the model's");
    require(!arrivals.profiled[i] || truth.dynamic[model], "profiled requests must be of dynamic models");
  }
  books.run_profiler(delay);
}

nb::dict simulate_serving(const Setup& setup, const Truth& truth, const Parameters& parameters, Column<Time> time,
                          Column<Time> deadline, Column<std::int32_t> model, Column<Time> work, Time warmup,
                          std::vector<std::int64_t> bad_limits, nb::object progress,
                          std::optional<Column<std::int32_t>> application, std::optional<Column<bool>> profiled,
                          Time profiler_delay, bool timed) {
  const Arrivals arrivals{time.data(),
                          deadline.data(),
                          model.data(),
                          work.data(),
                          static_cast<std::int64_t>(time.size()),
                          application ? application->data() : nullptr,
                          profiled ? profiled->data() : nullptr};
  check_setup(setup);
  check_truth(setup, truth, work.size(), time.size());
  check_columns(setup, arrivals, deadline.size(), model.size());
  check_optional("application", application, time.size());
  check_optional("profiled", profiled, time.size());
  if (!bad_limits.empty() && bad_limits.size() != setup.models.size())
    throw std::invalid_argument("bad_limits must have one number for each model, or none at all");
  auto books = std::make_unique<Books>(setup, arrivals, truth);
  const auto tick = ticker(std::move(progress));
  Decisions decisions;
  {
    nb::gil_scoped_release release;
    books->watch(warmup, std::move(bad_limits));
    auto policy = make_policy(setup, parameters);
    if (policy->listens_to_profiler()) listen(setup, truth, arrivals, *books, profiler_delay);
    if (timed) policy = std::make_unique<TimedPolicy>(std::move(policy), decisions);
    simulate(*policy, *books, arrivals, tick);
  }
  nb::dict out = record(std::move(*books));
  if (timed) {
    out["decision_at"] = column(std::move(decisions.at));
    out["decision_ns"] = column(std::move(decisions.ns));
  }
  return out;
}

std::vector<std::string> reasons() { return {"", "expired", "sacrificed", "unserved"}; }

}  // namespace
}  // namespace astrarium

NB_MODULE(_native, m) {
  using namespace astrarium;
  nb::class_<Dynamic>(m, "Dynamic").def(nb::init<Time, double, std::vector<std::vector<Time>>>());
  nb::class_<Model>(m, "Model")
      .def(nb::init<Time, std::vector<Time>>())
      .def(nb::init<Time, std::vector<Time>, Dynamic>());
  nb::class_<Network>(m, "Network").def(nb::init<Time, Time, Time>());
  nb::class_<Setup>(m, "Setup").def(nb::init<std::vector<Model>, int, Network, Time>());
  nb::class_<Truth>(m, "Truth")
      .def(nb::init<std::vector<int>, std::vector<std::vector<std::vector<Time>>>, std::vector<int>, std::vector<Time>,
                    std::vector<double>>());
  nb::class_<Parameters>(m, "Parameters")
      .def(nb::init<std::string, std::map<std::string, std::int64_t>, std::map<std::string, double>,
                    std::map<std::string, std::vector<std::int64_t>>>());
  using namespace nb::literals;
  m.def("simulate_serving", &simulate_serving, "setup"_a, "truth"_a, "parameters"_a, "time"_a, "deadline"_a, "model"_a,
        "work"_a, "warmup"_a, "bad_limits"_a, "progress"_a = nb::none(), "application"_a = nb::none(),
        "profiled"_a = nb::none(), "profiler_delay"_a = 0, "timed"_a = false);
  m.def("reasons", &reasons);
  bind_hull(m);
  nb::class_<LivePolicy>(m, "LivePolicy")
      .def(
          "__init__",
          [](LivePolicy* self, const Setup& setup, const Parameters& parameters) {
            check_setup(setup);
            new (self) LivePolicy(setup, parameters, &make_policy);
          },
          "setup"_a, "parameters"_a)
      .def("decide", &decide, "now"_a, "arrivals"_a, "events"_a);
}
