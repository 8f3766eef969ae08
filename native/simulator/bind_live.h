// A live policy as Python sees it: tuples in, tuples out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "policies/live_policy.h"

namespace astrarium {

inline nanobind::tuple told(const Decision& decision) {
  namespace nb = nanobind;
  switch (decision.kind) {
    case Decision::kDispatch: {
      nb::list ids;
      for (const std::int64_t id : decision.ids) ids.append(id);
      return nb::make_tuple(0, decision.gpu, nb::tuple(ids), decision.at);
    }
    case Decision::kDrop: return nb::make_tuple(1, decision.ids[0], static_cast<int>(decision.reason), 0);
    default: return nb::make_tuple(2, decision.at, 0, 0);
  }
}

// Arrivals are (id, model, arrival, deadline, application). Events are (what happened, GPU, run, when it began and
// ended), or of a profiled request (what happened, model, application, what it took alone, 0).
inline nanobind::list decide(LivePolicy& self, Time now, nanobind::list arrivals, nanobind::list events) {
  namespace nb = nanobind;
  std::vector<Arrival> came;
  for (nb::handle one : arrivals)
    came.push_back({nb::cast<std::int64_t>(one[0]), nb::cast<int>(one[1]), nb::cast<Time>(one[2]),
                    nb::cast<Time>(one[3]), nb::cast<int>(one[4])});
  std::vector<Event> heard;
  for (nb::handle one : events)
    heard.push_back({now, 0, static_cast<Happened>(nb::cast<int>(one[0])), nb::cast<int>(one[1]),
                     nb::cast<std::int64_t>(one[2]), nb::cast<Time>(one[3]), nb::cast<Time>(one[4])});
  nb::list decisions;
  for (const Decision& one : self.decide(now, came, heard)) decisions.append(told(one));
  return decisions;
}

}  // namespace astrarium
