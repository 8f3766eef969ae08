// A live policy as Python sees it: tuples in, tuples out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "policies/live_policy.h"

namespace astrarium {

inline nanobind::tuple as_tuple(const Action& action) {
  namespace nb = nanobind;
  return std::visit(
      Overloaded{[](const Dispatch& dispatch) {
                   nb::list ids;
                   for (const std::int64_t id : dispatch.requests) ids.append(id);
                   return nb::make_tuple(0, dispatch.gpu, nb::tuple(ids), dispatch.start);
                 },
                 [](const Drop& drop) { return nb::make_tuple(1, drop.request, static_cast<int>(drop.reason), 0); },
                 [](const SetTimer& timer) { return nb::make_tuple(2, timer.at, 0, 0); },
                 [](const Preempt& preempt) { return nb::make_tuple(3, preempt.gpu, preempt.run, 0); }},
      action);
}

// The names of events by the numbers of their kinds.
inline nanobind::tuple event_kinds() {
  return []<class... Kinds>(std::type_identity<std::variant<Kinds...>>) {
    return nanobind::make_tuple(Kinds::kName...);
  }(std::type_identity<Event>());
}

// (The number of its kind, GPU, run, when it began and ended), or of a profiled request (its kind, model, application,
// what it took alone, 0).
inline Event event_of(nanobind::handle row) {
  namespace nb = nanobind;
  const auto number = [&](int place) { return nb::cast<std::int64_t>(row[place]); };
  const int first = static_cast<int>(number(1));
  switch (number(0)) {
    case kind_number<BatchFinished>(): return BatchFinished{first, number(2), number(3), number(4)};
    case kind_number<BatchPreempted>(): return BatchPreempted{first, number(2), number(3), number(4)};
    case kind_number<RequestProfiled>(): return RequestProfiled{first, static_cast<int>(number(2)), number(3)};
    case kind_number<BatchFailed>(): return BatchFailed{first, number(2), {}};
    case kind_number<GpuJoined>(): return GpuJoined{first};
    case kind_number<GpuLeft>(): return GpuLeft{first};
    default:
      throw std::invalid_argument("event " + std::to_string(number(0)) + ": must be below " +
                                  std::to_string(std::variant_size_v<Event>));
  }
}

// Arrivals are (id, model, arrival, deadline, application, length, bucket).
inline nanobind::list decide(LivePolicy& self, Time now, nanobind::list arrivals, nanobind::list events) {
  namespace nb = nanobind;
  std::vector<Arrival> arrived;
  for (nb::handle row : arrivals)
    arrived.push_back({nb::cast<std::int64_t>(row[0]), nb::cast<int>(row[1]), nb::cast<Time>(row[2]),
                       nb::cast<Time>(row[3]), nb::cast<int>(row[4]), nb::cast<int>(row[5]), nb::cast<int>(row[6])});
  std::vector<Event> happened;
  for (nb::handle row : events) happened.push_back(event_of(row));
  nb::list actions;
  for (const Action& action : self.decide(now, arrived, happened)) actions.append(as_tuple(action));
  return actions;
}

}  // namespace astrarium
