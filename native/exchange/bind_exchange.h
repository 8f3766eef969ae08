// What the threads of a front share, as Python sees it, and what they have counted.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "exchange/audit.h"
#include "exchange/bind_regions.h"
#include "exchange/bind_text_queue.h"
#include "exchange/outcome_names.h"
#include "exchange/refusal_words.h"

namespace astrarium::front {

namespace nb = nanobind;

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
    for (const auto& [sum, counted] :
         {std::pair(success, &tally.success), std::pair(fail, &tally.fail), std::pair(queue, &tally.queue)}) {
      sum[0] += counted->count.get();
      sum[1] += counted->ns.get();
    }
  }
};

// A `Tally`, as aliases.nb in front/ has it.
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

inline nb::tuple last_calls(BoundExchange& self, std::size_t origin, std::int64_t number) {
  nb::list calls;
  for (const AnsweredCall& call : self.exchange->origins.at(origin)->last_calls.since(number))
    calls.append(nb::make_tuple(
        call.model, call.gpu, call.batch, call.batch_size, call.in_time != 0,
        nb::make_tuple(call.received, call.admitted, call.dispatched, call.started, call.finished, call.answered)));
  return nb::make_tuple(number, calls);
}

inline void bind_arena(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Arena>(m, "Arena", "An arena hands out blocks of shared memory, by any thread.")
      .def(nb::init<std::size_t>(), "size"_a)
      .def_prop_ro("size", &Arena::size, "How many bytes there are.")
      .def_prop_ro("used", &Arena::used, "How many of them are in blocks that were taken.")
      .def(
          "take",
          [](Arena& self, std::size_t bytes) -> nb::object {
            const std::int64_t offset = self.take(bytes);
            return offset < 0 ? nb::none() : nb::object(nb::int_(offset));
          },
          "size"_a, nb::sig("def take(self, size: int) -> int | None"),
          "Take a block of at least *size* bytes and return its offset, or None where none is free.")
      .def("give_back", &Arena::give_back, "offset"_a, "Give a block back; raise IndexError where none begins there.");
}

inline void bind_cost(nb::module_& m) {
  nb::class_<CallCost>(m, "CallCost", "A call cost is what a call of some length costs the GPUs of its model.")
      .def_ro("weight", &CallCost::weight, "Its part among the open calls of its model; 1024 is a plain one.")
      .def_ro("needed", &CallCost::needed, "How long it takes alone, from the decision on it to its answer.")
      .def_ro("length", &CallCost::length, "The length of that call; 0: all cost the same, or it is not known.");
}

inline void bind_verdict(nb::module_& m) {
  nb::enum_<Verdict>(m, "Verdict", "A verdict says whether a call is let in, or why not.")
      .value("TAKEN", Verdict::kTaken, "It is let in.")
      .value("CLOSED", Verdict::kClosed, "The server takes no calls now.")
      .value("TOO_LATE", Verdict::kTooLate, "Not even an idle GPU would be in time.")
      .value("FULL", Verdict::kFull, "As many calls are open as may be.")
      .value("AWAY", Verdict::kAway, "No worker is up, and none will be in time.")
      .value("BACKLOG", Verdict::kBacklog, "As many calls of this model are open as can be answered in time.")
      .value("BEHIND", Verdict::kBehind, "A network thread has more calls to read than it can.")
      .value("TEXTS", Verdict::kTexts, "More texts wait for tokens than can have them in time.");
}

// What threads that read calls ask.
inline void bind_verdicts(nb::class_<Admission>& bound) {
  using namespace nb::literals;
  bound
      .def("cost", &Admission::cost, "model"_a, "length"_a = 0, "rows"_a = 1,
           "Return what a call of so many rows of this length costs; 0: it is not known, and may be as short as any.")
      .def(
          "judge",
          [](Admission& self, int model, const CallCost& cost, Time objective, Time received, Time now) {
            return self.judge(model, cost, objective, received, now);
          },
          "model"_a, "cost"_a, "objective"_a, "received"_a, "now"_a,
          "Return the verdict on a call, and let nothing in.")
      .def("admit", &Admission::admit, "model"_a, "cost"_a, "objective"_a, "received"_a, "now"_a,
           "Return the verdict on a call; one that is taken counts as open until `ended`.")
      .def(
          "words",
          [](const Admission& self, Verdict verdict, int model, std::string_view name, const CallCost& cost,
             Time objective, Time received, Time now) {
            std::string text;
            append_words(text, verdict, {model, name, cost, objective, received, now}, self);
            return text;
          },
          "verdict"_a, "model"_a, "name"_a, "cost"_a, "objective"_a, "received"_a, "now"_a,
          "Return what the client of a call that was refused is told.")
      .def("let_in", &Admission::let_in, "model"_a, "cost"_a, "objective"_a, "calls"_a = 1,
           "Count calls as open until `ended`, whatever their verdict.")
      .def("reweigh", &Admission::reweigh, "model"_a, "before"_a, "weight"_a, "objective"_a,
           "Let an open call weigh something else, now that its length is known.")
      .def("ended", &Admission::ended, "model"_a, "weight"_a, "objective"_a,
           "Count an open call of this weight and objective no more.")
      .def("answered", &Admission::answered, "model"_a, "slip"_a,
           "Move the margin of a model by how much later than planned an answer was.")
      .def("margin", &Admission::margin, "model"_a, "Return how much later than planned answers have lately been.")
      .def(
          "open", [](const Admission& self) { return self.open(); }, "Return how many calls are open.")
      .def(
          "open_of", [](const Admission& self, int model) { return self.open(model); }, "model"_a,
          "Return how many calls of a model are open.");
}

// What the scheduler publishes.
inline void bind_admission(nb::module_& m) {
  using namespace nb::literals;
  auto bound = nb::class_<Admission>(m, "Admission", "The admission decides which calls are let in, in any thread.");
  bind_verdicts(bound);
  bound.def("close", &Admission::close, "closed"_a, "Let no calls in from now on, or let them in again.")
      .def("expect_worker", &Admission::expect_worker, "at"_a,
           "Say when a worker is expected while none is up; 0: one is.")
      .def(
          "plan", [](Admission& self, const Setup& setup, int gpus, Time now) { self.plan(setup, gpus, now); },
          "setup"_a, "gpus"_a, "now"_a, "Judge by this setup, on so many GPUs.")
      .def("look", &Admission::look, "now"_a, "Follow the rates at which calls have been answered.")
      .def(
          "count_answer", [](Admission& self, int model, Time at) { self.limit(model).answered(at); }, "model"_a,
          "at"_a, "Count an answer in time, for the rate of a model.")
      .def(
          "count_lost", [](Admission& self, int model) { self.limit(model).lost(); }, "model"_a,
          "Count a call that was let in and not answered in time.");
}

inline void bind_exchange(nb::module_& m) {
  using namespace nb::literals;
  bind_arena(m);
  bind_cost(m);
  bind_verdict(m);
  bind_admission(m);
  bind_regions(m);
  bind_text_queue(m);
  nb::class_<BoundExchange>(m, "Exchange",
                            "An exchange is what network threads, Python and the scheduler share: memory, tickets in "
                            "rings, who is let in, what was counted. Each thread that reads calls is an origin.")
      .def(nb::init<nb::handle, std::size_t, std::int64_t, std::size_t>(), "memory"_a, "models"_a, "most_open"_a,
           "origins"_a,
           nb::sig("def __init__(self, memory: memoryview, models: int, most_open: int, origins: int) -> None"))
      .def_prop_ro(
          "origins", [](BoundExchange& self) { return self.exchange->origins.size(); },
          "How many there are; the last one is Python.")
      .def("tally", &tally, "model"_a, nb::sig("def tally(self, model: int) -> Tally"),
           "Return what all network threads have counted of a model.")
      .def(
          "astray",
          [](const BoundExchange& self, std::int64_t held, std::int64_t open_in_python) {
            return astray(*self.exchange, held, open_in_python);
          },
          "held"_a, "open_in_python"_a,
          "Return how many calls are not where the books say: *held* by the scheduler, *open_in_python*.")
      .def("last_calls", &last_calls, "origin"_a, "since"_a,
           nb::sig("def last_calls(self, origin: int, since: int) -> tuple[int, list[AnsweredCall]]"),
           "Return the calls of an origin that were answered since that number, and the number of the next one.")
      .def(
          "arriving", [](const BoundExchange& self) { return self.exchange->arriving.load(); },
          "Return how many bytes of blocks wait for tensors that are on their way.")
      .def_prop_ro(
          "arena", [](BoundExchange& self) -> Arena& { return self.exchange->arena; },
          nb::rv_policy::reference_internal, "The memory where tensors lie.")
      .def_prop_ro(
          "regions", [](BoundExchange& self) -> Regions& { return self.exchange->regions; },
          nb::rv_policy::reference_internal, "The memory of clients where tensors lie.")
      .def_prop_ro(
          "texts", [](BoundExchange& self) -> TextQueue& { return self.exchange->texts; },
          nb::rv_policy::reference_internal, "The texts that wait to become tokens.")
      .def_prop_ro(
          "admission", [](BoundExchange& self) -> Admission& { return self.exchange->admission; },
          nb::rv_policy::reference_internal, "Who decides which calls are let in.");
}

}  // namespace astrarium::front
