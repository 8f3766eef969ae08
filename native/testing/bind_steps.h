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

  void arrive(std::int64_t number, int model, int rows, int application, std::pair<Time, Time> moments,
              std::tuple<std::size_t, std::size_t, std::size_t> rooms, nb::handle shapes, Time now) {
    Ticket* ticket = tickets.make();
    fill(*ticket, number, model, rows, application, moments, rooms, shapes);
    scheduler.arrive(ticket, now);
  }

  // When to step again; orders as (worker, packet); calls that ended.
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

inline void bind_steps(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<BoundSteps>(m, "Steps")
      .def(nb::init<int, int, nb::handle>(), "models"_a, "gpus"_a, "memory"_a.none() = nb::none())
      .def(
          "begin",
          [](BoundSteps& self, const Setup& setup, const Parameters& parameters, Time now) {
            self.scheduler.begin(setup, parameters.policy, live_twin(parameters), now);
          },
          "setup"_a, "parameters"_a, "now"_a)
      .def(
          "begin_in_python",
          [](BoundSteps& self, const Setup& setup, std::string name, nb::object make, Time now) {
            self.scheduler.begin(setup, std::move(name), python_policy(std::move(make)), now);
          },
          "setup"_a, "name"_a, "make"_a, "now"_a)
      .def(
          "profile", [](BoundSteps& self, double share, std::uint64_t seed) { self.scheduler.profile(share, seed); },
          "share"_a, "seed"_a)
      .def(
          "worker_joined", [](BoundSteps& self, int worker, Time now) { self.scheduler.worker_joined(worker, now); },
          "worker"_a, "now"_a)
      .def(
          "worker_left",
          [](BoundSteps& self, int worker, std::string reason, bool by_its_work, std::int64_t run, Time now) {
            return as_tuple(self.scheduler.worker_left(worker, {std::move(reason), by_its_work, run}, now));
          },
          "worker"_a, "reason"_a, "by_its_work"_a, "run"_a, "now"_a)
      .def(
          "set_apart",
          [](BoundSteps& self, int model, const std::vector<int>& workers, Time now) {
            self.scheduler.set_apart(model, workers, now);
          },
          "model"_a, "workers"_a, "now"_a)
      .def(
          "quarantined", [](BoundSteps& self, Time now) { return as_list(self.scheduler.quarantine.all(now)); },
          "now"_a)
      .def(
          "release", [](BoundSteps& self, int model) { return self.scheduler.quarantine.release(model); }, "model"_a)
      .def("arrive", &BoundSteps::arrive, "number"_a, "model"_a, "rows"_a, "application"_a, "moments"_a, "rooms"_a,
           "shapes"_a.none(), "now"_a)
      .def(
          "hear",
          [](BoundSteps& self, int worker, nb::bytes packet, Time now) {
            return self.scheduler.hear(worker, {packet.c_str(), packet.size()}, now);
          },
          "worker"_a, "packet"_a, "now"_a)
      .def("close", [](BoundSteps& self) { self.scheduler.close(); })
      .def_prop_ro(
          "admission", [](BoundSteps& self) -> Admission& { return self.admission; }, nb::rv_policy::reference_internal)
      .def("step", &BoundSteps::step, "now"_a)
      .def("batches", [](BoundSteps& self) { return as_tuple(std::exchange(self.scheduler.books, {})); })
      .def("waiting", [](const BoundSteps& self) { return self.scheduler.waiting(); })
      .def(
          "retried", [](const BoundSteps& self, int model) { return self.scheduler.retried(model); }, "model"_a)
      .def("held", [](BoundSteps& self) { return self.scheduler.held(); })
      .def("policy_errors",
           [](const BoundSteps& self) {
             return std::pair(self.scheduler.policy_errors(), self.scheduler.last_policy_error());
           })
      .def("oldest", [](const BoundSteps& self, int worker) { return self.scheduler.oldest(worker); }, "worker"_a);
}

}  // namespace astrarium::front
