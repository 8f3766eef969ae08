// Suspects are rows that no policy knows of. They were in a batch that broke its worker, and are to run *alone*, one by
// one, on its successor; or their model's own worker is away, and they wait for it. One that it is too late to try, or
// whose input has meanwhile broken a worker alone, has failed.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/quarantine.h"
#include "scheduler/ticket_ends.h"

namespace astrarium::front {

class Suspects {
 public:
  Suspects(Quarantine& quarantine, TicketEnds& ends) : quarantine_(quarantine), ends_(ends) {}

  void add(const Row& row, bool alone, std::string reason) { suspects_.push_back({row, alone, std::move(reason)}); }

  bool empty() const { return suspects_.empty(); }

  // When it will be too late for one of them.
  Time soonest_end() const {
    Time soonest = kForever;
    for (const Suspect& suspect : suspects_) soonest = std::min(soonest, last_chance(suspect.row) + 1);
    return soonest;
  }

  void give_up_late(Time now) {
    std::erase_if(suspects_, [&](const Suspect& suspect) {
      const bool late = now > last_chance(suspect.row);
      if (late) fail(suspect, ", and it is too late to try again");
      return late;
    });
  }

  // Takes the next one that is to run alone, of those that *run_here*.
  template <class RunsHere>
  std::optional<Row> take_alone(Time now, RunsHere runs_here) {
    give_up_late(now);
    give_up_quarantined(now);
    const auto next_suspect = std::find_if(suspects_.begin(), suspects_.end(), [&](const Suspect& suspect) {
      return suspect.alone && runs_here(suspect.row);
    });
    if (next_suspect == suspects_.end()) return std::nullopt;
    const Row row = next_suspect->row;
    suspects_.erase(next_suspect);
    return row;
  }

  // Takes those that have waited for a worker, and *run_here*.
  template <class RunsHere>
  std::vector<Row> take_waiting(RunsHere runs_here) {
    std::vector<Row> rows;
    std::erase_if(suspects_, [&](const Suspect& suspect) {
      const bool waits = !suspect.alone && runs_here(suspect.row);
      if (waits) rows.push_back(suspect.row);
      return waits;
    });
    return rows;
  }

  void close() {
    for (const Suspect& suspect : std::exchange(suspects_, {})) fail(suspect, ", and the server stopped");
  }

  template <class See>
  void for_each(See see) const {
    for (const Suspect& suspect : suspects_) see(suspect.row);
  }

 private:
  struct Suspect {
    Row row;
    bool alone;
    std::string reason;
  };

  static Time last_chance(const Row& row) { return row.ticket->deadline - row.ticket->cost.needed; }

  void fail(const Suspect& suspect, const char* why) {
    ends_.end(suspect.row, Outcome::kFailed, Cause::kWorkerLost, suspect.reason + why);
  }

  // What another of them did, or another row of the same call, these would do too.
  void give_up_quarantined(Time now) {
    std::erase_if(suspects_, [&](const Suspect& suspect) {
      if (suspect.row.ticket->outcome == Outcome::kFailed) return fail(suspect, ""), true;
      const QuarantinedInput* entry = quarantine_.find(*suspect.row.ticket, now);
      if (entry != nullptr) ends_.end(suspect.row, Outcome::kFailed, Cause::kQuarantined, entry->reason_at(now));
      return entry != nullptr;
    });
  }

  Quarantine& quarantine_;
  TicketEnds& ends_;
  std::vector<Suspect> suspects_;  // in the order in which they came; mostly none
};

}  // namespace astrarium::front
