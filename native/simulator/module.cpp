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
                          Time profiler_delay) {
  const RequestColumns columns{time, deadline, model, work, application, profiled};
  check_setup(setup);
  check_truth(setup, truth, work.size(), time.size());
  check_columns(setup, columns);
  if (!bad_limits.empty() && bad_limits.size() != setup.models.size())
    throw std::invalid_argument("bad_limits must have one number for each model, or none at all");
  const Arrivals arrivals = columns.arrivals();
  RunOptions options{warmup, std::move(bad_limits), profiler_delay, ticker(std::move(progress))};
  std::unique_ptr<Books> books;
  {
    nb::gil_scoped_release release;
    books = run(setup, truth, parameters, arrivals, std::move(options));
  }
  return record(std::move(*books));
}

std::vector<std::string> reasons() { return {"", "expired", "sacrificed", "unserved"}; }

}  // namespace
}  // namespace astrarium

NB_MODULE(_simulator, m) {
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
        "profiled"_a = nb::none(), "profiler_delay"_a = 0);
  m.def("reasons", &reasons);
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
