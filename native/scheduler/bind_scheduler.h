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

  bool arrive(std::int64_t number, int model, int rows, int application, std::pair<Time, Time> times,
              std::tuple<std::size_t, std::size_t, std::size_t> blocks, nb::handle shapes, int length) {
    Ticket* ticket = tickets.make();
    fill(*ticket, number, model, rows, application, times, blocks, shapes, length);
    ticket->cost = exchange.admission.cost(model, length, rows);
    ticket->origin = static_cast<int>(exchange.origins.size()) - 1;
    if (exchange.origins.back()->sent.push(ticket)) return exchange.bell.ring(), true;
    tickets.free(ticket);
    return false;
  }

  nb::list ended() {
    Origin& origin = *exchange.origins.back();
    origin.bell.wakes();
    nb::list calls;
    Ticket* ticket = nullptr;
    while (origin.back.pop(ticket)) {
      calls.append(as_tuple(*ticket));
      tickets.free(ticket);
    }
    origin.bell.sleeps();
    if (!origin.back.empty()) origin.bell.ring();
    return calls;
  }
};

inline nb::list packets(BoundScheduler& self) {
  nb::list rows;
  for (const Packet& packet : self.thread.packets()) rows.append(nb::make_tuple(packet.worker, as_bytes(packet.bytes)));
  return rows;
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
      .def(
          "quarantined",
          [](BoundScheduler& self) {
            return as_list(unlocked([&] {
              return self.thread.ask(
                  [](const Scheduler& scheduler) { return scheduler.quarantine.all(monotonic_ns()); });
            }));
          },
          nb::sig("def quarantined(self) -> list[QuarantinedInput]"), "Return the inputs that are refused.")
      .def(
          "batches", [](BoundScheduler& self) { return as_tuple(unlocked([&] { return self.thread.batches(); })); },
          nb::sig("def batches(self) -> Batches"), "Return what became of batches since the last time.")
      .def(
          "waiting",
          [](BoundScheduler& self) {
            return self.thread.ask([](const Scheduler& scheduler) { return scheduler.waiting(); });
          },
          Without(), "Return how many requests wait for the policy.")
      .def(
          "retried",
          [](BoundScheduler& self, int model) {
            return self.thread.ask([model](const Scheduler& scheduler) { return scheduler.retried(model); });
          },
          "model"_a, Without(), "Return how many calls of a model were tried again after a worker was lost.")
      .def(
          "astray",
          [](BoundScheduler& self, std::int64_t open_in_python) {
            return self.thread.ask(
                [&](Scheduler& scheduler) { return astray(self.exchange, scheduler.held(), open_in_python); });
          },
          "open_in_python"_a, Without(), "Return how many calls are not where the books say.")
      .def(
          "policy_errors",
          [](BoundScheduler& self) {
            return self.thread.ask([](const Scheduler& scheduler) {
              return std::pair(scheduler.policy_errors(), scheduler.last_policy_error());
            });
          },
          Without(), "Return how often the policy has failed, and the last error.")
      .def(
          "oldest",
          [](BoundScheduler& self, int worker) {
            return self.thread.ask([worker](const Scheduler& scheduler) { return scheduler.oldest(worker); });
          },
          "worker"_a, Without(), "Return the tag of a worker's oldest batch and how long it may take, or None.")
      .def(
          "thinks_since", [](const BoundScheduler& self) { return self.thread.thinks_since(); },
          "Return since when a policy in Python decides, or 0: no worker is heard until it has.");
}

inline void bind_thread(nb::class_<BoundScheduler>& bound) {
  using namespace nb::literals;
  using Without = nb::call_guard<nb::gil_scoped_release>;
  bound
      .def(nb::init<nb::object, int>(), "exchange"_a, "gpus"_a,
           nb::sig("def __init__(self, exchange: astrarium._front.Exchange, gpus: int) -> None"))
      .def_prop_ro(
          "admission", [](BoundScheduler& self) -> Admission& { return self.exchange.admission; },
          nb::rv_policy::reference_internal, "The admission of the exchange.")
      .def(
          "start", [](BoundScheduler& self) { self.thread.start(); }, Without(),
          "Start the thread. Who hands in a call while no batch is under way may decide in its place.")
      .def(
          "stop", [](BoundScheduler& self) { self.thread.stop(); }, Without(), "End the thread; all stays as it is.")
      .def(
          "turn", [](BoundScheduler& self) { return self.thread.turn(true); }, Without(),
          "Hear all workers, decide and send, and return when the next turn is due.")
      .def(
          "close", [](BoundScheduler& self) { self.thread.close(); }, Without(),
          "End all that is open; what arrives later is not looked at any more.")
      .def(
          "bell", [](BoundScheduler& self) { return self.exchange.origins.back()->bell.fd(); },
          "Return a descriptor that can be read while something waits in `ended`, `packets` or `troubles`.")
      .def(
          "cpu_ns", [](const BoundScheduler& self) { return self.thread.cpu_time(); },
          "Return the CPU time that the thread has had.")
      .def(
          "packets", [](BoundScheduler& self) { return packets(self); },
          nb::sig("def packets(self) -> list[tuple[int, bytes]]"), "Take what workers said that is about no batch.")
      .def(
          "troubles", [](BoundScheduler& self) { return self.thread.troubles(); },
          "Take the workers that cannot be sent orders, and why.");
}

inline void bind_policy(nb::class_<BoundScheduler>& bound) {
  using namespace nb::literals;
  using Without = nb::call_guard<nb::gil_scoped_release>;
  bound
      .def(
          "begin",
          [](BoundScheduler& self, const Setup& setup, const Parameters& parameters) {
            self.thread.begin(setup, parameters.policy, live_twin(parameters));
          },
          "setup"_a, "parameters"_a, Without(), "Let a fresh native policy decide from now on.")
      .def(
          "begin_in_python",
          [](BoundScheduler& self, const Setup& setup, std::string name, nb::object make) {
            MakeDecider maker = python_policy(std::move(make));
            unlocked([&] { self.thread.begin(setup, std::move(name), std::move(maker)); });
          },
          "setup"_a, "name"_a, "make"_a,
          nb::sig("def begin_in_python(self, setup: astrarium._simulator.Setup, name: str, "
                  "make: collections.abc.Callable[[], object]) -> None"),
          "Let what *make* returns decide (`PythonPolicy`), and another one each time that it fails.")
      .def(
          "profile", [](BoundScheduler& self, double share, std::uint64_t seed) { self.thread.profile(share, seed); },
          "share"_a, "seed"_a, Without(),
          "Tell policies that listen what this share of the requests would have taken alone.")
      .def(
          "release",
          [](BoundScheduler& self, int model) {
            return self.thread.ask([model](Scheduler& scheduler) { return scheduler.quarantine.release(model); });
          },
          "model"_a, Without(), "Let a model's refused inputs in again, and return how many there were.")
      .def("arrive", &BoundScheduler::arrive, "number"_a, "model"_a, "rows"_a, "application"_a, "times"_a, "blocks"_a,
           "shapes"_a.none(), "length"_a = 0,
           nb::sig("def arrive(self, number: int, model: int, rows: int, application: int, times: tuple[int, int], "
                   "blocks: tuple[int, int, int], shapes: collections.abc.Sequence[Written] | None, length: int = 0) "
                   "-> bool"),
           "Hand in a call that Python has read, and return whether there was place for it. It has *times* when it was "
           "received and is due, and *blocks*: where inputs lie, where answers go, and the bytes for them; *length* is "
           "that of each row.")
      .def("ended", &BoundScheduler::ended, nb::sig("def ended(self) -> list[Ended]"),
           "Take the calls of Python that have ended.");
}

inline void bind_workers(nb::class_<BoundScheduler>& bound) {
  using namespace nb::literals;
  using Without = nb::call_guard<nb::gil_scoped_release>;
  bound
      .def(
          "worker_joined", [](BoundScheduler& self, int worker) { self.thread.worker_joined(worker); }, "worker"_a,
          Without(), "Let a worker have batches, now that it has its models.")
      .def(
          "worker_left",
          [](BoundScheduler& self, int worker, std::string reason, bool by_its_work, std::int64_t tag) {
            return as_tuple(
                unlocked([&] { return self.thread.worker_left(worker, {std::move(reason), by_its_work, tag}); }));
          },
          "worker"_a, "reason"_a, "by_its_work"_a, "tag"_a,
          nb::sig("def worker_left(self, worker: int, reason: str, by_its_work: bool, tag: int) -> Blame"),
          "Give a lost worker's requests back to the policy, and return who is to blame; *tag* is of the batch that "
          "its last words named, or -1.")
      .def(
          "set_apart",
          [](BoundScheduler& self, int model, const std::vector<int>& workers) {
            self.thread.set_apart(model, workers);
          },
          "model"_a, "workers"_a, Without(),
          "Let a model have workers of its own, one for each GPU; none: it is with the others again.")
      .def(
          "watch", [](BoundScheduler& self, int worker, int socket) { self.thread.watch(worker, socket); }, "worker"_a,
          "socket"_a, Without(), "Hear a worker from now on, and send it orders.")
      .def(
          "forget", [](BoundScheduler& self, int worker) { self.thread.forget(worker); }, "worker"_a, Without(),
          "Hear what is left of a worker's messages, and then no more of it.");
}

inline void bind_scheduler(nb::module_& m) {
  auto bound = nb::class_<BoundScheduler>(m, "Scheduler", "The scheduler in a thread of its own.");
  bind_thread(bound);
  bind_policy(bound);
  bind_workers(bound);
  bind_questions(bound);
}

}  // namespace astrarium::front
