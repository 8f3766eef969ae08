// The scheduler's thread as Python sees it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "exchange/exchange.h"
#include "front/bind_network.h"
#include "policies/live_twins.h"
#include "scheduler/python_policy.h"
#include "scheduler/scheduler_thread.h"
#include "testing/feed.h"

namespace astrarium::front {

namespace nb = nanobind;

inline std::vector<Written> read_shapes(nb::handle given) {
  std::vector<Written> found;
  if (given.is_none()) return found;
  for (nb::handle one : given) found.push_back({nb::cast<protocol::Shape>(one[0]), nb::cast<std::size_t>(one[1])});
  return found;
}

inline nb::list told_row(const std::vector<Written>& row) {
  nb::list shapes;
  for (const Written& one : row) {
    nb::list shape;
    for (const std::int64_t dimension : one.shape) shape.append(dimension);
    shapes.append(nb::make_tuple(nb::tuple(shape), one.bytes));
  }
  return shapes;
}

inline nb::object told_shapes(const std::vector<std::vector<Written>>& rows) {
  if (rows.empty()) return nb::none();
  nb::list all;
  for (const auto& row : rows) all.append(told_row(row));
  return all;
}

// The tickets of calls that Python has read: the last origin.
class PythonTickets {
 public:
  Ticket* make() {
    if (spare_.empty()) return &all_.emplace_back();
    Ticket* ticket = spare_.back();
    spare_.pop_back();
    ticket->clear();
    return ticket;
  }
  void free(Ticket* ticket) { spare_.push_back(ticket); }

 private:
  std::deque<Ticket> all_;  // which stay where they are
  std::vector<Ticket*> spare_;
};

inline void fill(Ticket& ticket, std::int64_t number, int model, int rows, int application,
                 std::pair<Time, Time> moments, std::tuple<std::size_t, std::size_t, std::size_t> rooms,
                 nb::handle shapes) {
  ticket.number = number;
  ticket.model = model;
  ticket.rows = rows;
  ticket.application = application;
  std::tie(ticket.received, ticket.deadline) = moments;
  std::tie(ticket.block, ticket.replies, ticket.reply_bytes) = rooms;
  ticket.inputs = read_shapes(shapes);
}

// (number, outcome, cause, reason, shapes of the answers by row, retried, its batch).
inline nb::tuple told(const Ticket& ticket) {
  const auto batch = nb::make_tuple(ticket.batch, ticket.gpu, ticket.batch_size, ticket.dispatched, ticket.planned_end,
                                    ticket.started, ticket.finished);
  const bool says_it = ticket.cause == Cause::kOther;  // the policy's own words
  const std::string cause = says_it ? ticket.reason : std::string(name_of(ticket.cause));
  return nb::make_tuple(ticket.number, static_cast<int>(ticket.outcome), cause, ticket.reason,
                        told_shapes(ticket.reply_shapes), ticket.retried, batch);
}

// (model, calls, certain).
inline nb::tuple told(const Blame& blame) { return nb::make_tuple(blame.model, blame.calls, blame.certain); }

// [(model, digest, since, until, reason)].
inline nb::list told(const std::vector<QuarantinedInput>& inputs) {
  nb::list found;
  for (const QuarantinedInput& one : inputs)
    found.append(nb::make_tuple(one.model, one.digest, one.since, one.until, one.reason));
  return found;
}

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
      found.append(told(*ticket));
      tickets.free(ticket);
    }
    origin.bell.sleeps();
    if (!origin.back.empty()) origin.bell.ring();
    return found;
  }
};

// What BatchesDone in astrarium.server.control.accounts.model_accounts holds, and how long the last batches kept their GPUs.
inline nb::tuple told(const ModelBatches& one) {
  nb::list execution, last;
  nb::dict computing;
  for (const std::int64_t count : one.execution) execution.append(count);
  for (std::size_t size = 0; size < one.computing.size(); ++size)
    if (const auto& [count, time] = one.computing[size]; count) computing[nb::int_(size)] = nb::make_tuple(count, time);
  for (const KeptGpu& kept : one.last) last.append(nb::make_tuple(kept.finished, kept.size, kept.kept));
  return nb::make_tuple(nb::make_tuple(execution, one.gathering, one.writing, computing), last);
}

// ([(model, its batches, the last of them)], [(GPU, when a second began, how long it was busy in it)]).
inline nb::tuple told(const BatchBooks& books) {
  nb::list models, busy;
  for (std::size_t model = 0; model < books.models.size(); ++model)
    if (!books.models[model].last.empty()) models.append(nb::make_tuple(model) + told(books.models[model]));
  for (std::size_t gpu = 0; gpu < books.busy.size(); ++gpu)
    for (const auto& [began, time] : books.busy[gpu]) busy.append(nb::make_tuple(gpu, began, time));
  return nb::make_tuple(models, busy);
}

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
      ended.append(told(*ticket));
      tickets.free(ticket);
    }
    return nb::make_tuple(next, orders, ended);
  }
};

inline void bind_steps(nb::module_& m) {
  using namespace nb::literals;
  // (answered, dropped, batches, steps) of so many requests at such a rate, heard every so often.
  m.def(
      "feed",
      [](const Setup& setup, const Parameters& parameters, std::int64_t requests, double per_second, Time turn,
         double profiled_share) {
        const Fed fed =
            Feed(setup, parameters.policy, live_twin(parameters), profiled_share).run(requests, per_second, turn);
        return std::tuple(fed.answered, fed.dropped, fed.batches, fed.steps);
      },
      "setup"_a, "parameters"_a, "requests"_a, "per_second"_a, "turn"_a, "profiled_share"_a = 0.0,
      nb::call_guard<nb::gil_scoped_release>());
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
            return told(self.scheduler.worker_left(worker, {std::move(reason), by_its_work, run}, now));
          },
          "worker"_a, "reason"_a, "by_its_work"_a, "run"_a, "now"_a)
      .def(
          "set_apart",
          [](BoundSteps& self, int model, const std::vector<int>& workers, Time now) {
            self.scheduler.set_apart(model, workers, now);
          },
          "model"_a, "workers"_a, "now"_a)
      .def(
          "quarantined", [](BoundSteps& self, Time now) { return told(self.scheduler.quarantine.all(now)); }, "now"_a)
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
      .def("batches", [](BoundSteps& self) { return told(std::exchange(self.scheduler.books, {})); })
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
             return told(unlocked([&] {
               return self.thread.ask([](const Scheduler& one) { return one.quarantine.all(monotonic_ns()); });
             }));
           })
      .def(
          "release",
          [](BoundScheduler& self, int model) {
            return self.thread.ask([model](Scheduler& one) { return one.quarantine.release(model); });
          },
          "model"_a, Without())
      .def("batches", [](BoundScheduler& self) { return told(unlocked([&] { return self.thread.batches(); })); })
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
            return told(
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
      .def("troubles", [](BoundScheduler& self) { return self.thread.troubles(); })
      .def_prop_ro(
          "admission", [](BoundScheduler& self) -> Admission& { return self.exchange.admission; },
          nb::rv_policy::reference_internal);
  bind_questions(bound);
  bind_steps(m);
}

}  // namespace astrarium::front
