// The scheduler step by step, as Python's tests drive it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/python_bytes.h"
#include "policies/live_twins.h"
#include "scheduler/python_policy.h"
#include "scheduler/python_tickets.h"

namespace astrarium::front {

namespace nb = nanobind;

// The scheduler alone, in a time that the caller makes: for tests, and to measure what deciding costs.
struct BoundSteps {
  Py_buffer memory{};  // of the tensors; nothing where a test has none
  Admission admission;
  Scheduler scheduler;
  PythonTickets tickets;

  BoundSteps(int models, int gpus, nb::handle view)
      : admission(static_cast<std::size_t>(models), 1 << 30), scheduler(gpus, admission, start_of(view)) {}
  ~BoundSteps() { PyBuffer_Release(&memory); }
  BoundSteps(const BoundSteps&) = delete;
  BoundSteps& operator=(const BoundSteps&) = delete;

  const char* start_of(nb::handle view) {
    if (view.is_none()) return nullptr;
    if (PyObject_GetBuffer(view.ptr(), &memory, PyBUF_SIMPLE) != 0) throw nb::python_error();
    return static_cast<const char*>(memory.buf);
  }

  void arrive(std::int64_t number, int model, int rows, int application, std::pair<Time, Time> times,
              std::tuple<std::size_t, std::size_t, std::size_t> blocks, nb::handle shapes, int length, Time now) {
    Ticket* ticket = tickets.make();
    fill(*ticket, number, model, rows, application, times, blocks, shapes, length);
    ticket->cost = admission.cost(model, length, rows);
    scheduler.arrive(ticket, now);
  }

  nb::tuple step(Time now) {
    const Time next = scheduler.step(now);
    nb::list orders, ended;
    for (const Order& order : std::exchange(scheduler.orders, {}))
      orders.append(nb::make_tuple(order.worker, as_bytes(order.packet)));
    for (Ticket* ticket : std::exchange(scheduler.ended, {})) {
      ended.append(as_tuple(*ticket));
      tickets.free(ticket);
    }
    return nb::make_tuple(next, orders, ended);
  }
};

inline void bind_step_workers(nb::class_<BoundSteps>& bound) {
  using namespace nb::literals;
  bound
      .def(
          "worker_joined", [](BoundSteps& self, int worker, Time now) { self.scheduler.worker_joined(worker, now); },
          "worker"_a, "now"_a, "Let a worker have batches.")
      .def(
          "worker_left",
          [](BoundSteps& self, int worker, std::string reason, bool by_its_work, std::int64_t tag, Time now) {
            return as_tuple(self.scheduler.worker_left(worker, {std::move(reason), by_its_work, tag}, now));
          },
          "worker"_a, "reason"_a, "by_its_work"_a, "tag"_a, "now"_a,
          nb::sig("def worker_left(self, worker: int, reason: str, by_its_work: bool, tag: int, now: int) -> Blame"),
          "Give a lost worker's requests back to the policy, and return who is to blame.")
      .def(
          "set_apart",
          [](BoundSteps& self, int model, const std::vector<int>& workers, Time now) {
            self.scheduler.set_apart(model, workers, now);
          },
          "model"_a, "workers"_a, "now"_a, "Let a model have workers of its own, one for each GPU; none: no more.")
      .def(
          "hear",
          [](BoundSteps& self, int worker, nb::bytes packet, Time now) {
            return self.scheduler.hear(worker, {packet.c_str(), packet.size()}, now);
          },
          "worker"_a, "packet"_a, "now"_a, "Hear a worker, and return whether it spoke of a batch.");
}

inline void bind_step_questions(nb::class_<BoundSteps>& bound) {
  using namespace nb::literals;
  bound
      .def_prop_ro(
          "admission", [](BoundSteps& self) -> Admission& { return self.admission; }, nb::rv_policy::reference_internal,
          "The admission that it publishes to.")
      .def(
          "quarantined", [](BoundSteps& self, Time now) { return as_list(self.scheduler.quarantine.all(now)); },
          "now"_a, nb::sig("def quarantined(self, now: int) -> list[QuarantinedInput]"),
          "Return the inputs that are refused.")
      .def(
          "batches", [](BoundSteps& self) { return as_tuple(std::exchange(self.scheduler.books, {})); },
          nb::sig("def batches(self) -> Batches"), "Return what became of batches since the last time.")
      .def(
          "waiting", [](const BoundSteps& self) { return self.scheduler.waiting(); },
          "Return how many requests wait for the policy.")
      .def(
          "retried", [](const BoundSteps& self, int model) { return self.scheduler.retried(model); }, "model"_a,
          "Return how many calls of a model were tried again.")
      .def(
          "held", [](BoundSteps& self) { return self.scheduler.held(); },
          "Return how many calls have arrived and not ended, counted where they lie.")
      .def(
          "policy_errors",
          [](const BoundSteps& self) {
            return std::pair(self.scheduler.policy_errors(), self.scheduler.last_policy_error());
          },
          "Return how often the policy has failed, and the last error.")
      .def(
          "oldest", [](const BoundSteps& self, int worker) { return self.scheduler.oldest(worker); }, "worker"_a,
          "Return the tag of a worker's oldest batch and how long it may take, or None.");
}

inline void bind_steps(nb::module_& m) {
  using namespace nb::literals;
  auto bound = nb::class_<BoundSteps>(m, "Steps", "The scheduler alone, in a time that the caller makes.");
  bound
      .def(nb::init<int, int, nb::handle>(), "models"_a, "gpus"_a, "memory"_a.none() = nb::none(),
           nb::sig("def __init__(self, models: int, gpus: int, memory: memoryview | None = None) -> None"))
      .def(
          "begin",
          [](BoundSteps& self, const Setup& setup, const Parameters& parameters, Time now) {
            self.scheduler.begin(setup, parameters.policy, live_twin(parameters), now);
          },
          "setup"_a, "parameters"_a, "now"_a, "Let a fresh native policy decide from now on.")
      .def(
          "begin_in_python",
          [](BoundSteps& self, const Setup& setup, std::string name, nb::object make, Time now) {
            self.scheduler.begin(setup, std::move(name), python_policy(std::move(make)), now);
          },
          "setup"_a, "name"_a, "make"_a, "now"_a,
          nb::sig("def begin_in_python(self, setup: astrarium._simulator.Setup, name: str, "
                  "make: collections.abc.Callable[[], object], now: int) -> None"),
          "Let what *make* returns decide, and another one each time that it fails.")
      .def(
          "profile", [](BoundSteps& self, double share, std::uint64_t seed) { self.scheduler.profile(share, seed); },
          "share"_a, "seed"_a, "Tell policies that listen what this share of the requests would have taken alone.")
      .def(
          "release", [](BoundSteps& self, int model) { return self.scheduler.quarantine.release(model); }, "model"_a,
          "Let a model's refused inputs in again, and return how many there were.")
      .def("arrive", &BoundSteps::arrive, "number"_a, "model"_a, "rows"_a, "application"_a, "times"_a, "blocks"_a,
           "shapes"_a.none(), "length"_a, "now"_a,
           nb::sig("def arrive(self, number: int, model: int, rows: int, application: int, times: tuple[int, int], "
                   "blocks: tuple[int, int, int], shapes: collections.abc.Sequence[Written] | None, length: int, "
                   "now: int) -> None"),
           "Hand in a call, as to `Scheduler.arrive`.")
      .def(
          "close", [](BoundSteps& self) { self.scheduler.close(); },
          "End all that is open; the policy is asked no more.")
      .def("step", &BoundSteps::step, "now"_a,
           nb::sig("def step(self, now: int) -> tuple[int, list[tuple[int, bytes]], list[Ended]]"),
           "Decide, and return when to step again, orders by worker, and the calls that have ended.");
  bind_step_workers(bound);
  bind_step_questions(bound);
}

}  // namespace astrarium::front
