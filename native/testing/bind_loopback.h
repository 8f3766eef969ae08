// The loopback as Python sees it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "exchange/bind_exchange.h"
#include "testing/loopback.h"

namespace astrarium::front {

namespace nb = nanobind;

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

inline void bind_loopback(nb::module_& m) {
  using namespace nb::literals;
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
