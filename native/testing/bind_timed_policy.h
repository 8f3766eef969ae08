// A simulated run whose decisions are timed, as Python's benchmarks ask for it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <memory>
#include <optional>
#include <utility>

#include "simulator/columns.h"
#include "simulator/run.h"
#include "testing/timed_policy.h"

namespace astrarium {

inline nb::dict simulate_timed(const Setup& setup, const Truth& truth, const Parameters& parameters, Column<Time> time,
                               Column<Time> deadline, Column<std::int32_t> model, Column<Time> work,
                               std::optional<Column<std::int32_t>> application, std::optional<Column<bool>> profiled,
                               Time profiler_delay) {
  const RequestColumns columns{time, deadline, model, work, application, profiled};
  check_setup(setup);
  check_truth(setup, truth, work.size(), time.size());
  check_columns(setup, columns);
  const Arrivals arrivals = columns.arrivals();
  Decisions decisions;
  RunOptions options;
  options.profiler_delay = profiler_delay;
  options.around = [&decisions](std::unique_ptr<Policy> policy) {
    return std::make_unique<TimedPolicy>(std::move(policy), decisions);
  };
  nb::dict out = record(std::move(*run(setup, truth, parameters, arrivals, options)));
  out["decision_at"] = column(std::move(decisions.at));
  out["decision_ns"] = column(std::move(decisions.ns));
  return out;
}

inline void bind_timed_policy(nb::module_& m) {
  using namespace nb::literals;
  m.def(
      "simulate_timed", &simulate_timed, "setup"_a, "truth"_a, "parameters"_a, "time"_a, "deadline"_a, "model"_a,
      "work"_a, "application"_a.none(), "profiled"_a.none(), "profiler_delay"_a,
      nb::sig("def simulate_timed(setup: astrarium._simulator.Setup, truth: astrarium._simulator.Truth, "
              "parameters: astrarium._simulator.Parameters, time: Ints, deadline: Ints, model: Ints, work: Ints, "
              "application: Ints | None, profiled: Bools | None, profiler_delay: int) -> dict[str, typing.Any]"),
      "Simulate as `simulate_serving` does; the record also says when the policy decided (`decision_at`) and how long "
      "that took (`decision_ns`).");
}

}  // namespace astrarium
