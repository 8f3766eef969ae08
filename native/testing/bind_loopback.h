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
  Ending ending{Outcome::kOpen, Cause::kNone, std::move(reason)};
  for (int i = 1; i < ModelTally::kOutcomes; ++i)
    if (outcome_name(i) == outcome) ending.outcome = static_cast<Outcome>(i);
  if (ending.outcome == Outcome::kOpen) throw std::invalid_argument("no outcome " + outcome);
  for (int i = 0; i < kCauses; ++i)
    if (kCauseNames[i] == cause) ending.cause = static_cast<Cause>(i);
  return ending;
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

  // Shapes and bytes, of what a tokenizer made where one did.
  nb::list inputs_of(const ClientTicket& ticket) const {
    nb::list inputs;
    for (const Written& tensor : ticket.inputs) inputs.append(nb::make_tuple(tensor.shape, tensor.bytes));
    for (std::size_t at = 0; ticket.inputs.empty() && at < ticket.call.inputs.size(); ++at)
      inputs.append(nb::make_tuple(ticket.call.inputs[at].shape, ticket.input_bytes(at, exchange.size)));
    return inputs;
  }

  // Each is a `PoppedTicket`, as aliases.nb has it.
  nb::list pop() {
    nb::list rows;
    for (ClientTicket* ticket : loopback.pop()) {
      open[++numbers] = ticket;
      const nb::list inputs = inputs_of(*ticket);
      rows.append(nb::make_tuple(numbers, ticket->model, ticket->rows, ticket->application, ticket->received,
                                 ticket->deadline, ticket->block, ticket->replies, ticket->reply_bytes, inputs,
                                 ticket->call.timeout_us, ticket->call.priority, ticket->call.application,
                                 ticket->call.patience));
    }
    return rows;
  }

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

  void plan(const std::vector<std::pair<Time, std::vector<Time>>>& models, int gpus) {
    Setup setup;
    for (const auto& [slo, latency] : models) setup.models.push_back({slo, latency, std::nullopt});
    exchange.admission.plan(setup, gpus, monotonic_ns());
  }
};

inline void bind_loopback(nb::module_& m) {
  using namespace nb::literals;
  using L = BoundLoopback;
  nb::class_<L>(
      m, "Loopback",
      "A loopback stands in for the scheduler and the workers: it answers calls with their own inputs, or ends "
      "them as it is asked.")
      .def(nb::init<BoundExchange&>(), "exchange"_a, nb::keep_alive<1, 2>())
      .def(
          "start", [](L& self) { self.loopback.start(); }, "End tickets in a thread of its own, until it is stopped.")
      .def("stop", &L::stop, "End that thread.")
      .def(
          "end_with",
          [](L& self, const std::string& outcome, const std::string& cause, std::string reason) {
            self.loopback.end_with(ending(outcome, cause, std::move(reason)));
          },
          "outcome"_a, "cause"_a = "", "reason"_a = "", "Let the thread end tickets like this from now on.")
      .def(
          "fd", [](L& self) { return self.exchange.bell.fd(); },
          "Return a descriptor that can be read while there is something to pop.")
      .def("pop", &L::pop, nb::sig("def pop(self) -> list[PoppedTicket]"), "Take all tickets that have come.")
      .def("end", &L::end, "number"_a, "outcome"_a = "in_time", "cause"_a = "", "reason"_a = "",
           "shapes"_a = std::vector<std::vector<std::pair<protocol::Shape, std::size_t>>>(),
           nb::sig("def end(self, number: int, outcome: str = 'in_time', cause: str = '', reason: str = '', "
                   "shapes: collections.abc.Sequence[collections.abc.Sequence[tuple[Shape, int]]] = ()) -> None"),
           "End a ticket that was popped. The shapes are those of the outputs, with their bytes, by row; none: the "
           "model's.")
      .def("plan", &L::plan, "models"_a, "gpus"_a,
           "Let the admission plan with these models: the objective of each, and how long batches of 0, 1, ... take.");
}

}  // namespace astrarium::front
