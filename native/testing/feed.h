// Measures the scheduler alone: tickets come through a ring at a given rate, workers take as long as planned (of
// dynamic models, what their histories say), and time is virtual, so that what is left is the work of one core.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/ring.h"
#include "testing/virtual_gpus.h"

namespace astrarium::front {

struct Fed {
  std::int64_t answered = 0, dropped = 0, batches = 0, steps = 0;
};

class Feed {
 public:
  Feed(const Setup& setup, std::string name, MakeDecider make, double profiled_share)
      : setup_(setup),
        admission_(setup.models.size(), 1 << 30),
        scheduler_(setup.gpus, admission_, nullptr),
        gpus_(setup_, 1.0, kSeed) {
    scheduler_.profile(profiled_share, kSeed);
    for (int gpu = 0; gpu < setup.gpus; ++gpu) scheduler_.worker_joined(gpu, 0);
    scheduler_.begin(setup, std::move(name), std::move(make), 0);
  }

  // *requests* evenly spaced, of all models in turn, taken every *turn* nanoseconds.
  Fed run(std::int64_t requests, double per_second, Time turn) {
    Fed fed;
    Ring<Ticket*> ring(kTickets);
    std::vector<Ticket> tickets(kTickets);
    std::vector<Ticket*> spare;
    for (Ticket& ticket : tickets) spare.push_back(&ticket);
    const double gap = 1e9 / per_second;
    std::int64_t sent = 0;
    Time next = 0;
    for (Time now = 0; sent < requests || scheduler_.waiting() > 0 || gpus_.next() < kForever;
         now = std::max(now + 1, std::min(next, sent < requests ? now + turn : kForever))) {
      for (; sent < requests && static_cast<double>(sent) * gap <= static_cast<double>(now) && !spare.empty(); ++sent) {
        Ticket* ticket = spare.back();
        spare.pop_back();
        ticket->clear();
        ticket->model = static_cast<int>(sent % static_cast<std::int64_t>(setup_.models.size()));
        if (const auto& known = setup_.models[static_cast<std::size_t>(ticket->model)].dynamic)
          ticket->application = static_cast<int>(draws_.next() % known->history.size());
        ticket->received = static_cast<Time>(static_cast<double>(sent) * gap);
        ticket->deadline = ticket->received + setup_.models[static_cast<std::size_t>(ticket->model)].slo;
        ring.push(ticket);
      }
      Ticket* ticket = nullptr;
      while (ring.pop(ticket)) scheduler_.arrive(ticket, now);
      gpus_.tell(scheduler_, now);
      next = scheduler_.step(now);
      ++fed.steps;
      fed.batches += gpus_.take(scheduler_, now);
      for (Ticket* ended : scheduler_.ended) {
        ++(ended->outcome == Outcome::kInTime ? fed.answered : fed.dropped);
        spare.push_back(ended);
      }
      scheduler_.ended.clear();
      next = std::min(next, gpus_.next());
    }
    return fed;
  }

 private:
  static constexpr std::uint64_t kSeed = 1;
  static constexpr std::size_t kTickets = 1 << 17;  // more than are ever under way

  Setup setup_;
  Admission admission_;
  Scheduler scheduler_;
  VirtualGpus gpus_;
  Draws draws_{kSeed};
};

}  // namespace astrarium::front
