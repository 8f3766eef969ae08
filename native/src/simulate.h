// Virtual time: twin of astrarium.drivers.simulate for the serving level.
#pragma once

#include <vector>

#include "policy.h"

namespace astrarium {

// Run until nothing more can happen (or the watched limits are exceeded); returns the last instant.
inline Time simulate(Policy& policy, Books& books, const Arrivals& arrivals) {
  std::vector<Event> events;
  std::int64_t next = 0;
  Time now = 0;
  while (!books.hopeless()) {
    const Time arrival = next < arrivals.count ? arrivals.time[next] : kForever;
    const Time instant = std::min(arrival, books.next_instant());
    if (instant >= kForever) break;
    now = instant;
    const std::int64_t first = next;
    while (next < arrivals.count && arrivals.time[next] == now) ++next;
    events.clear();
    if (books.apply(now, events) || next > first)
      policy.decide(Instant{now, first, next, events, arrivals}, books);
  }
  if (!books.hopeless()) books.close(now);  // a lost run is not a record
  return now;
}

}  // namespace astrarium
