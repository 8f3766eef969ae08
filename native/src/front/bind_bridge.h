// The bridge as Python sees it.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <tuple>
#include <unordered_map>

#include "bind_network.h"
#include "bind_scheduler.h"
#include "bridge.h"

namespace astrarium::front {

struct BoundBridge {
  Exchange& exchange;
  Bridge bridge;
  std::unordered_map<std::int64_t, Ticket*> open;  // by a number of ours
  std::int64_t numbers = 0;

  explicit BoundBridge(BoundExchange& exchange) : exchange(*exchange.exchange), bridge(*exchange.exchange) {}

  // (number, model, rows, application's number, (received, admitted, deadline), (block, replies, room), shapes of the
  // inputs or None: the model's own).
  nb::list pop() {
    nb::list found;
    for (Ticket* one : bridge.pop()) {
      open[++numbers] = one;
      found.append(nb::make_tuple(numbers, one->model, one->rows, one->application, nb::make_tuple(one->received, one->admitted, one->deadline),
                                  nb::make_tuple(one->block, one->replies, one->room), told_inputs(one->inputs)));
    }
    return found;
  }

  // *shapes*: of the answers, by row, each of them None where they are the model's own; *batch*: what it carried.
  void end(std::int64_t number, int outcome, const std::string& cause, const std::string& reason, nb::list shapes, bool retried, nb::handle batch) {
    const auto known = open.extract(number);
    if (known.empty()) throw std::out_of_range("number");
    Ticket& ticket = *known.mapped();
    ticket.outcome = static_cast<Outcome>(outcome), ticket.cause = cause_of(cause);
    ticket.reason = ticket.cause == Cause::kOther && ticket.outcome == Outcome::kDropped ? cause : reason;
    ticket.retried = retried;
    bool own = false;
    for (nb::handle row : shapes) {
      ticket.reply_shapes.push_back(read_shapes(row));
      own |= !ticket.reply_shapes.back().empty();
    }
    if (!own) ticket.reply_shapes.clear();
    if (!batch.is_none())
      std::tie(ticket.batch, ticket.gpu, ticket.batch_size, ticket.dispatched, ticket.planned_end, ticket.started, ticket.finished) =
          nb::cast<std::tuple<std::int64_t, int, int, Time, Time, Time, Time>>(batch);
    bridge.end(ticket);
  }

 private:
  static nb::object told_inputs(const std::vector<Written>& inputs) { return inputs.empty() ? nb::none() : nb::object(told_row(inputs)); }

  static Cause cause_of(const std::string& name) {
    for (int i = 0; i < kCauses; ++i)
      if (kCauseNames[i] == name) return static_cast<Cause>(i);
    return Cause::kOther;
  }
};

inline void bind_bridge(nb::module_& m) {
  using namespace nb::literals;
  using B = BoundBridge;
  nb::class_<B>(m, "Bridge")
      .def(nb::init<BoundExchange&>(), "exchange"_a, nb::keep_alive<1, 2>())
      .def("fd", [](B& self) { return self.exchange.bell.fd(); })
      .def("pop", &B::pop)
      .def("end", &B::end, "number"_a, "outcome"_a, "cause"_a, "reason"_a, "shapes"_a, "retried"_a, "batch"_a.none());
}

}  // namespace astrarium::front
