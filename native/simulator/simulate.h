// Virtual time: twin of astrarium.run.simulate for the serving level.
#pragma once

#include <functional>
#include <vector>

#include "policies/policy.h"

namespace astrarium {

// Run until nothing more can happen (or the watched limits are exceeded).
// `tick` hears the time now and then, often enough for a person who watches or wants to stop.
inline void simulate(Policy& policy, Books& books, const Arrivals& arrivals, const std::function<void(Time)>& tick) {
  std::vector<Event> events;
  std::int64_t next = 0, instants = 0;
  Time now = 0;
  while (!books.hopeless()) {
    if ((++instants & 0x3fff) == 0) tick(now);
    const Time arrival = next < arrivals.count ? arrivals.time[next] : kForever;
    const Time instant = std::min(arrival, books.next_instant());
    if (instant >= kForever) break;
    now = instant;
    const std::int64_t first = next;
    while (next < arrivals.count && arrivals.time[next] == now) ++next;
    events.clear();
    if (books.apply(now, events) || next > first) policy.decide(Instant{now, first, next, events, arrivals}, books);
  }
  if (!books.hopeless()) books.close(now);  // a lost run is not a record
}

}  // namespace astrarium
