// The network as Python sees it.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <future>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "exchange/audit.h"
#include "front/http1/http1_thread.h"
#include "testing/loopback.h"

namespace astrarium::front {

namespace nb = nanobind;

inline nb::bytes as_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

// ---- the exchange

// The exchange, and the shared memory that its tensors lie in.
struct BoundExchange {
  Py_buffer memory{};
  std::unique_ptr<Exchange> exchange;

  BoundExchange(nb::handle view, std::size_t models, std::int64_t most_open, std::size_t origins) {
    if (PyObject_GetBuffer(view.ptr(), &memory, PyBUF_WRITABLE) != 0) throw nb::python_error();
    exchange = std::make_unique<Exchange>(static_cast<char*>(memory.buf), static_cast<std::size_t>(memory.len), models,
                                          most_open, origins);
  }
  ~BoundExchange() {
    {
      nb::gil_scoped_release release;
      exchange.reset();
    }
    PyBuffer_Release(&memory);
  }
  BoundExchange(const BoundExchange&) = delete;
  BoundExchange& operator=(const BoundExchange&) = delete;
};

// ---- the network

// Threads that read calls, whatever they speak. They live as long as the exchange: their tickets may come back late.
template <class Thread, class Shared>
struct BoundThreads {
  std::shared_ptr<Shared> shared;
  std::vector<std::shared_ptr<Thread>> threads;
  std::size_t first;  // origin of theirs

  BoundThreads(BoundExchange& exchange, std::shared_ptr<Shared> given, const std::vector<int>& listeners,
               std::size_t first)
      : shared(std::move(given)), first(first) {
    for (const int listener : listeners) {
      const int fd = ::fcntl(listener, F_DUPFD_CLOEXEC, 0);
      if (fd < 0) throw std::runtime_error("no descriptor for the listener");
      ::fcntl(fd, F_SETFL, O_NONBLOCK);
      threads.push_back(std::make_shared<Thread>(shared, static_cast<int>(first + threads.size()), fd));
      exchange.exchange->kept.push_back(threads.back());
    }
  }
  ~BoundThreads() { stop(); }

  void start() {
    for (const auto& thread : threads) thread->start();
  }
  void stop() {
    nb::gil_scoped_release release;
    for (const auto& thread : threads) thread->stop();
  }
  void drain() {
    for (const auto& thread : threads) thread->post([one = thread.get()] { one->drain(); });
  }

  // Until every thread has done what it was told before.
  void synchronize() {
    nb::gil_scoped_release release;
    std::vector<std::future<void>> done;
    for (const auto& thread : threads) {
      auto told = std::make_shared<std::promise<void>>();
      done.push_back(told->get_future());
      thread->post([told] { told->set_value(); });
    }
    for (auto& one : done) one.wait();
  }

  void serve(const ServedModel& model) {
    for (const auto& thread : threads) thread->post([one = thread.get(), model] { one->serve(model); });
  }
  void withhold(const std::string& name, const std::string& why) {
    for (const auto& thread : threads) thread->post([one = thread.get(), name, why] { one->withhold(name, why); });
  }
  void read_on() {
    for (const auto& thread : threads) thread->post([one = thread.get()] { one->read_on(); });
  }

  Thread& of(ConnectionNumber number) { return *threads.at((number >> 48) - first); }
};

struct BoundNetwork : BoundThreads<Http1Thread, Http1Shared> {
  BoundNetwork(BoundExchange& exchange, const std::vector<int>& listeners, std::size_t head_bytes,
               std::size_t body_bytes, std::size_t held_bytes, Time request, Time keep_alive, std::int64_t connections,
               std::vector<std::string> keys, nb::bytes too_slow, nb::bytes no_descriptor)
      : BoundThreads(
            exchange,
            std::make_shared<Http1Shared>(
                *exchange.exchange, HttpLimits{head_bytes, body_bytes, held_bytes, request, keep_alive, connections},
                Keys(std::move(keys)), std::string(too_slow.c_str(), too_slow.size()),
                std::string(no_descriptor.c_str(), no_descriptor.size())),
            listeners, 0) {}
};

inline std::vector<protocol::Spec> specs_of(nb::list given) {
  std::vector<protocol::Spec> found;
  for (nb::handle one : given) {
    using Told = std::tuple<std::int64_t, std::int64_t, std::string>;
    const auto [name, type, shape, told] =
        nb::cast<std::tuple<std::string, std::string, protocol::Shape, std::optional<Told>>>(one);
    const protocol::Datatype* known = protocol::datatype(type);
    if (known == nullptr) throw std::invalid_argument("no datatype " + type);
    found.push_back({name, known, shape});
    if (told) found.back().limits = std::make_from_tuple<protocol::Limits>(*told);
  }
  return found;
}

template <class Bound>
void serve(Bound& self, int index, std::string name, std::string version, nb::list inputs, nb::list outputs,
           std::int64_t max_batch, Time objective, std::map<std::int64_t, Time> priorities,
           std::vector<std::string> applications) {
  if (index < 0 || static_cast<std::size_t>(index) >= self.shared->exchange.models) throw std::out_of_range("index");
  protocol::Model model{index,     std::move(name), std::move(version),   specs_of(inputs), specs_of(outputs),
                        max_batch, objective,       std::move(priorities)};
  self.serve(ServedModel(std::move(model), std::move(applications)));
}

// What was passed to Python: (kind, connection, bytes, why, received, error, (host, port) of the client).
inline nb::list passed(BoundNetwork& self) {
  auto [all, stalled] = self.shared->long_way.take();
  if (stalled) self.read_on();
  nb::list found;
  for (const Passed& one : all)
    found.append(nb::make_tuple(static_cast<int>(one.kind), one.connection, as_bytes(one.bytes), one.why, one.received,
                                one.error, nb::make_tuple(one.peer.host, one.peer.port)));
  return found;
}

// ---- what was counted

struct Totals {
  std::int64_t accepted = 0, items = 0, declined = 0;
  std::map<std::pair<int, int>, std::int64_t> ended;
  std::vector<std::int64_t> refused = std::vector<std::int64_t>(kRefusals);
  std::vector<std::int64_t> latency = std::vector<std::int64_t>(TimeHistogram::kBounds.size() + 1), queueing = latency;
  std::int64_t latency_sum = 0, queueing_sum = 0, success[2] = {}, fail[2] = {}, queue[2] = {};

  void add(const ModelTally& tally) {
    accepted += tally.accepted.get();
    items += tally.items.get();
    declined += tally.declined.get();
    for (int outcome = 1; outcome < ModelTally::kOutcomes; ++outcome)
      for (int cause = 0; cause < kCauses; ++cause)
        if (const auto count = tally.ended[static_cast<std::size_t>(outcome)][static_cast<std::size_t>(cause)].get())
          ended[{outcome, cause}] += count;
    for (std::size_t i = 0; i < refused.size(); ++i) refused[i] += tally.refused[i].get();
    for (std::size_t i = 0; i < latency.size(); ++i) {
      latency[i] += tally.latency.counts[i].get();
      queueing[i] += tally.queueing.counts[i].get();
    }
    latency_sum += tally.latency.sum.get();
    queueing_sum += tally.queueing.sum.get();
    for (const auto& [sum, one] :
         {std::pair(success, &tally.success), std::pair(fail, &tally.fail), std::pair(queue, &tally.queue)}) {
      sum[0] += one->count.get();
      sum[1] += one->ns.get();
    }
  }
};

inline std::string_view outcome_name(int outcome) {
  constexpr std::string_view kNames[] = {"open", "in_time", "late", "dropped", "failed"};
  return kNames[outcome];
}

// Of a model, over all network threads: (accepted, items, declined, {(outcome, cause): calls}, {kind: refused},
// latency, queueing, success, fail, queue); histograms as (counts, nanoseconds), sums as (count, nanoseconds).
inline nb::tuple tally(BoundExchange& self, std::size_t model) {
  Totals totals;
  for (const auto& origin : self.exchange->origins)
    totals = origin->counted.read([&] {
      Totals more = totals;
      more.add(origin->tallies.at(model));
      return more;
    });
  nb::dict ended, refused;
  for (const auto& [key, count] : totals.ended) {
    const std::string_view outcome = outcome_name(key.first), cause = kCauseNames[key.second];
    ended[nb::make_tuple(nb::str(outcome.data(), outcome.size()), nb::str(cause.data(), cause.size()))] = count;
  }
  refused["deadline"] = totals.refused[0];
  refused["overloaded"] = totals.refused[1];
  refused["unavailable"] = totals.refused[2];
  refused["bad_request"] = totals.refused[3];
  const auto pair = [](const std::int64_t* sum) { return nb::make_tuple(sum[0], sum[1]); };
  return nb::make_tuple(totals.accepted, totals.items, totals.declined, ended, refused,
                        nb::make_tuple(totals.latency, totals.latency_sum),
                        nb::make_tuple(totals.queueing, totals.queueing_sum), pair(totals.success), pair(totals.fail),
                        pair(totals.queue));
}

// Calls of an origin that were answered since the *number*-th: the number of the next one, and for each (model, gpu,
// batch, batch size, in time, (received, admitted, dispatched, started, finished, answered)).
inline nb::tuple last_calls(BoundExchange& self, std::size_t origin, std::int64_t number) {
  nb::list found;
  for (const AnsweredCall& call : self.exchange->origins.at(origin)->last_calls.since(number))
    found.append(nb::make_tuple(
        call.model, call.gpu, call.batch, call.batch_size, call.in_time != 0,
        nb::make_tuple(call.received, call.admitted, call.dispatched, call.started, call.finished, call.answered)));
  return nb::make_tuple(number, found);
}

// ---- the loopback

inline Ending ending(const std::string& outcome, const std::string& cause, std::string reason) {
  Ending found{Outcome::kOpen, Cause::kNone, std::move(reason)};
  for (int i = 1; i < ModelTally::kOutcomes; ++i)
    if (outcome_name(i) == outcome) found.outcome = static_cast<Outcome>(i);
  if (found.outcome == Outcome::kOpen) throw std::invalid_argument("no outcome " + outcome);
  for (int i = 0; i < kCauses; ++i)
    if (kCauseNames[i] == cause) found.cause = static_cast<Cause>(i);
  return found;
}

struct BoundLoopback {
  Exchange& exchange;
  Loopback loopback;
  std::map<std::int64_t, ClientTicket*> open;  // by a number of ours
  std::int64_t numbers = 0;

  explicit BoundLoopback(BoundExchange& exchange) : exchange(*exchange.exchange), loopback(*exchange.exchange) {}
  ~BoundLoopback() { stop(); }
  void stop() {
    nb::gil_scoped_release release;
    loopback.stop();
  }

  // (number, model, rows, application's number, received, deadline, block, replies, room, shapes and bytes of inputs,
  // timeout in microseconds, priority, application, patience)
  nb::list pop() {
    nb::list found;
    for (ClientTicket* one : loopback.pop()) {
      open[++numbers] = one;
      nb::list inputs;
      for (std::size_t at = 0; at < one->call.inputs.size(); ++at) {
        inputs.append(nb::make_tuple(one->call.inputs[at].shape, one->input_bytes(at, exchange.size)));
      }
      found.append(nb::make_tuple(numbers, one->model, one->rows, one->application, one->received, one->deadline,
                                  one->block, one->replies, one->reply_bytes, inputs, one->call.timeout_us,
                                  one->call.priority, one->call.application, one->call.patience));
    }
    return found;
  }

  // *shapes*: by row, (shape, bytes) of each output; empty: the model's own.
  void end(std::int64_t number, const std::string& outcome, const std::string& cause, std::string reason,
           const std::vector<std::vector<std::pair<protocol::Shape, std::size_t>>>& shapes) {
    ClientTicket* ticket = open.at(number);
    for (const auto& row : shapes) {
      auto& written = ticket->reply_shapes.emplace_back();
      for (const auto& [shape, bytes] : row) written.push_back({shape, bytes});
    }
    loopback.end(*ticket, ending(outcome, cause, std::move(reason)));
    open.erase(number);
  }

  // What the scheduler would publish: of each model its objective and its latencies for batches of 0, 1, ...
  void plan(const std::vector<std::pair<Time, std::vector<Time>>>& models, int gpus) {
    Setup setup;
    for (const auto& [slo, latency] : models) setup.models.push_back({slo, latency, std::nullopt});
    exchange.admission.plan(setup, gpus, monotonic_ns());
  }
};

inline void bind_shared(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Arena>(m, "Arena")
      .def(nb::init<std::size_t>(), "size"_a)
      .def_prop_ro("size", &Arena::size)
      .def_prop_ro("used", &Arena::used)
      .def(
          "take",
          [](Arena& self, std::size_t bytes) -> nb::object {
            const std::int64_t found = self.take(bytes);
            return found < 0 ? nb::none() : nb::object(nb::int_(found));
          },
          "size"_a)
      .def("give_back", &Arena::give_back, "offset"_a);
  nb::class_<Admission>(m, "Admission")
      .def(
          "admit",
          [](Admission& self, int model, Time objective, Time received, Time now) {
            return static_cast<int>(self.admit(model, objective, received, now));
          },
          "model"_a, "objective"_a, "received"_a, "now"_a)
      .def("ended", &Admission::ended, "model"_a)
      .def("answered", &Admission::answered, "model"_a, "slip"_a)
      .def("close", &Admission::close, "closed"_a)
      .def("expect_worker", &Admission::expect_worker, "at"_a)
      .def("margin", &Admission::margin, "model"_a)
      .def(
          "plan", [](Admission& self, const Setup& setup, int gpus, Time now) { self.plan(setup, gpus, now); },
          "setup"_a, "gpus"_a, "now"_a)
      .def("look", &Admission::look, "now"_a)
      .def(
          "judge",
          [](Admission& self, int model, Time objective, Time received, Time now) {
            return static_cast<int>(self.judge(model, objective, received, now));
          },
          "model"_a, "objective"_a, "received"_a, "now"_a)
      .def(
          "needed", [](const Admission& self, int model) { return self.needed(model); }, "model"_a)
      .def(
          "count_answer", [](Admission& self, int model) { self.limit(model).answered(); }, "model"_a)
      .def("open", [](const Admission& self) { return self.open(); })
      .def("open_of", [](const Admission& self, int model) { return self.open(model); }, "model"_a);
}

template <class N>
nb::class_<N> bind_threads(nb::class_<N> bound) {
  using namespace nb::literals;
  return bound.def("start", &N::start)
      .def("drain", &N::drain)
      .def("stop", &N::stop)
      .def("synchronize", &N::synchronize)
      .def("serve", &serve<N>, "index"_a, "name"_a, "version"_a, "inputs"_a, "outputs"_a, "max_batch"_a, "objective"_a,
           "priorities"_a, "applications"_a)
      .def("withhold", &N::withhold, "name"_a, "why"_a)
      .def("connections", [](N& self) { return self.shared->connections.load(); })
      .def("held", [](N& self) { return self.shared->held.load(); })
      .def("turned_away",
           [](N& self) {
             std::int64_t found = 0;
             for (const auto& thread : self.threads) found += thread->turned_away();
             return found;
           })
      .def("fd", [](N& self) { return self.shared->long_way.fd(); })
      .def("long_way", [](N& self) { return self.shared->long_way.reasons(); })
      .def("cpu_ns", [](N& self) {
        std::vector<Time> found;
        for (const auto& thread : self.threads) found.push_back(thread->cpu_time());
        return found;
      });
}

inline void bind_network(nb::module_& m) {
  using namespace nb::literals;
  bind_shared(m);
  nb::class_<BoundExchange>(m, "Exchange")
      .def(nb::init<nb::handle, std::size_t, std::int64_t, std::size_t>(), "memory"_a, "models"_a, "most_open"_a,
           "origins"_a)
      .def_prop_ro("origins", [](BoundExchange& self) { return self.exchange->origins.size(); })
      .def("tally", &tally, "model"_a)
      .def(
          "astray",
          [](const BoundExchange& self, std::int64_t held, std::int64_t open_in_python) {
            return astray(*self.exchange, held, open_in_python);
          },
          "held"_a, "open_in_python"_a)
      .def("last_calls", &last_calls, "origin"_a, "since"_a)
      .def("arriving", [](const BoundExchange& self) { return self.exchange->arriving.load(); })
      .def_prop_ro(
          "arena", [](BoundExchange& self) -> Arena& { return self.exchange->arena; },
          nb::rv_policy::reference_internal)
      .def_prop_ro(
          "admission", [](BoundExchange& self) -> Admission& { return self.exchange->admission; },
          nb::rv_policy::reference_internal);
  using N = BoundNetwork;
  bind_threads(nb::class_<N>(m, "Network"))
      .def(nb::init<BoundExchange&, const std::vector<int>&, std::size_t, std::size_t, std::size_t, Time, Time,
                    std::int64_t, std::vector<std::string>, nb::bytes, nb::bytes>(),
           "exchange"_a, "listeners"_a, "head_bytes"_a, "body_bytes"_a, "held_bytes"_a, "request_ns"_a,
           "keep_alive_ns"_a, "connections"_a, "keys"_a, "too_slow"_a, "no_descriptor"_a, nb::keep_alive<1, 2>())
      .def("passed", &passed)
      .def(
          "write",
          [](N& self, ConnectionNumber n, nb::bytes data) {
            self.of(n).post(
                [&t = self.of(n), n, bytes = std::string(data.c_str(), data.size())] { t.write(n, bytes); });
          },
          "connection"_a, "data"_a)
      .def(
          "tell_when_sent",
          [](N& self, ConnectionNumber n) { self.of(n).post([&t = self.of(n), n] { t.tell_when_sent(n); }); },
          "connection"_a)
      .def(
          "pause",
          [](N& self, ConnectionNumber n, bool paused) {
            self.of(n).post([&t = self.of(n), n, paused] { t.pause(n, paused); });
          },
          "connection"_a, "paused"_a)
      .def(
          "close", [](N& self, ConnectionNumber n) { self.of(n).post([&t = self.of(n), n] { t.close_soon(n); }); },
          "connection"_a)
      .def(
          "linger", [](N& self, ConnectionNumber n) { self.of(n).post([&t = self.of(n), n] { t.linger(n); }); },
          "connection"_a)
      .def(
          "abort", [](N& self, ConnectionNumber n) { self.of(n).post([&t = self.of(n), n] { t.abort(n); }); },
          "connection"_a)
      .def(
          "take_back",
          [](N& self, ConnectionNumber n, std::uint64_t received, nb::bytes data) {
            self.of(n).post([&t = self.of(n), n, received, bytes = std::string(data.c_str(), data.size())] {
              t.take_back(n, received, bytes);
            });
          },
          "connection"_a, "received"_a, "data"_a);
  m.attr("DATA") = static_cast<int>(Passed::kData);
  m.attr("END") = static_cast<int>(Passed::kEnd);
  m.attr("SENT") = static_cast<int>(Passed::kSent);
  m.attr("LOST") = static_cast<int>(Passed::kLost);
  using L = BoundLoopback;
  nb::class_<L>(m, "Loopback")
      .def(nb::init<BoundExchange&>(), "exchange"_a, nb::keep_alive<1, 2>())
      .def("start", [](L& self) { self.loopback.start(); })
      .def("stop", &L::stop)
      .def(
          "end_with",
          [](L& self, const std::string& outcome, const std::string& cause, std::string reason) {
            self.loopback.end_with(ending(outcome, cause, std::move(reason)));
          },
          "outcome"_a, "cause"_a = "", "reason"_a = "")
      .def("fd", [](L& self) { return self.exchange.bell.fd(); })
      .def("pop", &L::pop)
      .def("end", &L::end, "number"_a, "outcome"_a = "in_time", "cause"_a = "", "reason"_a = "",
           "shapes"_a = std::vector<std::vector<std::pair<protocol::Shape, std::size_t>>>())
      .def("plan", &L::plan, "models"_a, "gpus"_a);
}

}  // namespace astrarium::front
