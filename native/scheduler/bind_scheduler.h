// The scheduler's thread as Python sees it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/python_bytes.h"
#include "exchange/bind_exchange.h"
#include "exchange/exchange.h"
#include "policies/live_twins.h"
#include "scheduler/python_policy.h"
#include "scheduler/python_tickets.h"
#include "scheduler/scheduler_thread.h"

namespace astrarium::front {

namespace nb = nanobind;

struct BoundScheduler {
  nb::object kept;  // the exchange
  Exchange& exchange;
  SchedulerThread thread;
  PythonTickets tickets;

  BoundScheduler(nb::object shared, int gpus)
      : kept(shared), exchange(*nb::cast<BoundExchange&>(shared).exchange), thread(exchange, gpus) {
    exchange.origins.back()->bell.sleeps();  // Python waits for it from the start
  }
  ~BoundScheduler() {
    const nb::gil_scoped_release release;  // its thread may wait for Python
    thread.stop();
  }
  BoundScheduler(const BoundScheduler&) = delete;
  BoundScheduler& operator=(const BoundScheduler&) = delete;

  // False where no more can be taken in.
  bool arrive(std::int64_t number, int model, int rows, int application, std::pair<Time, Time> moments,
              std::tuple<std::size_t, std::size_t, std::size_t> rooms, nb::handle shapes) {
    Ticket* ticket = tickets.make();
    fill(*ticket, number, model, rows, application, moments, rooms, shapes);
    ticket->origin = static_cast<int>(exchange.origins.size()) - 1;
    if (exchange.origins.back()->sent.push(ticket)) return exchange.bell.ring(), true;
    tickets.free(ticket);
    return false;
  }

  // Calls of Python that have ended.
  nb::list ended() {
    Origin& origin = *exchange.origins.back();
    origin.bell.wakes();
    nb::list found;
    Ticket* ticket = nullptr;
    while (origin.back.pop(ticket)) {
      found.append(as_tuple(*ticket));
      tickets.free(ticket);
    }
    origin.bell.sleeps();
    if (!origin.back.empty()) origin.bell.ring();
    return found;
  }
};

inline nb::list packets(BoundScheduler& self) {
  nb::list found;
  for (const Packet& packet : self.thread.packets())
    found.append(nb::make_tuple(packet.worker, as_bytes(packet.bytes)));
  return found;
}

// Whoever waits for the scheduler's turn lets others have Python meanwhile: who has the turn may be waiting for that.
template <class Ask>
auto unlocked(Ask ask) {
  const nb::gil_scoped_release release;
  return ask();
}

inline void bind_questions(nb::class_<BoundScheduler>& bound) {
  using namespace nb::literals;
  using Without = nb::call_guard<nb::gil_scoped_release>;
  bound
      .def("quarantined",
           [](BoundScheduler& self) {
             return as_list(unlocked([&] {
               return self.thread.ask([](const Scheduler& one) { return one.quarantine.all(monotonic_ns()); });
             }));
           })
      .def(
          "release",
          [](BoundScheduler& self, int model) {
            return self.thread.ask([model](Scheduler& one) { return one.quarantine.release(model); });
          },
          "model"_a, Without())
      .def("batches", [](BoundScheduler& self) { return as_tuple(unlocked([&] { return self.thread.batches(); })); })
      .def(
          "waiting",
          [](BoundScheduler& self) { return self.thread.ask([](const Scheduler& one) { return one.waiting(); }); },
          Without())
      .def(
          "retried",
          [](BoundScheduler& self, int model) {
            return self.thread.ask([model](const Scheduler& one) { return one.retried(model); });
          },
          "model"_a, Without())
      .def(
          "astray",
          [](BoundScheduler& self, std::int64_t open_in_python) {
            return self.thread.ask([&](Scheduler& one) { return astray(self.exchange, one.held(), open_in_python); });
          },
          "open_in_python"_a, Without())
      .def(
          "policy_errors",
          [](BoundScheduler& self) {
            return self.thread.ask(
                [](const Scheduler& one) { return std::pair(one.policy_errors(), one.last_policy_error()); });
          },
          Without())
      .def(
          "oldest",
          [](BoundScheduler& self, int worker) {
            return self.thread.ask([worker](const Scheduler& one) { return one.oldest(worker); });
          },
          "worker"_a, Without());
}

inline void bind_scheduler(nb::module_& m) {
  using namespace nb::literals;
  using Without = nb::call_guard<nb::gil_scoped_release>;
  auto bound = nb::class_<BoundScheduler>(m, "Scheduler");
  bound.def(nb::init<nb::object, int>(), "exchange"_a, "gpus"_a)
      .def(
          "start", [](BoundScheduler& self) { self.thread.start(); }, Without())
      .def(
          "stop", [](BoundScheduler& self) { self.thread.stop(); }, Without())
      .def(
          "turn", [](BoundScheduler& self) { return self.thread.turn(true); }, Without())
      .def("bell", [](BoundScheduler& self) { return self.exchange.origins.back()->bell.fd(); })
      .def(
          "begin",
          [](BoundScheduler& self, const Setup& setup, const Parameters& parameters) {
            self.thread.begin(setup, parameters.policy, live_twin(parameters));
          },
          "setup"_a, "parameters"_a, Without())
      .def(
          "begin_in_python",
          [](BoundScheduler& self, const Setup& setup, std::string name, nb::object make) {
            MakeDecider maker = python_policy(std::move(make));
            unlocked([&] { self.thread.begin(setup, std::move(name), std::move(maker)); });
          },
          "setup"_a, "name"_a, "make"_a)
      .def(
          "profile", [](BoundScheduler& self, double share, std::uint64_t seed) { self.thread.profile(share, seed); },
          "share"_a, "seed"_a, Without())
      .def(
          "worker_joined", [](BoundScheduler& self, int worker) { self.thread.worker_joined(worker); }, "worker"_a,
          Without())
      .def(
          "worker_left",
          [](BoundScheduler& self, int worker, std::string reason, bool by_its_work, std::int64_t run) {
            return as_tuple(
                unlocked([&] { return self.thread.worker_left(worker, {std::move(reason), by_its_work, run}); }));
          },
          "worker"_a, "reason"_a, "by_its_work"_a, "run"_a)
      .def(
          "set_apart",
          [](BoundScheduler& self, int model, const std::vector<int>& workers) {
            self.thread.set_apart(model, workers);
          },
          "model"_a, "workers"_a, Without())
      .def(
          "watch", [](BoundScheduler& self, int worker, int socket) { self.thread.watch(worker, socket); }, "worker"_a,
          "socket"_a, Without())
      .def(
          "forget", [](BoundScheduler& self, int worker) { self.thread.forget(worker); }, "worker"_a, Without())
      .def(
          "close", [](BoundScheduler& self) { self.thread.close(); }, Without())
      .def("arrive", &BoundScheduler::arrive, "number"_a, "model"_a, "rows"_a, "application"_a, "moments"_a, "rooms"_a,
           "shapes"_a.none())
      .def("ended", &BoundScheduler::ended)
      .def("packets", &packets)
      .def("thinks", [](const BoundScheduler& self) { return self.thread.thinks(); })
      .def("troubles", [](BoundScheduler& self) { return self.thread.troubles(); })
      .def_prop_ro(
          "admission", [](BoundScheduler& self) -> Admission& { return self.exchange.admission; },
          nb::rv_policy::reference_internal);
  bind_questions(bound);
}

}  // namespace astrarium::front
