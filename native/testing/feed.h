// Measures the scheduler alone: tickets come through a ring at a given rate, workers take as long as planned (of
// dynamic models, what their histories say), and time is virtual, so that what is left is the work of one core.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "common/ring.h"
#include "scheduler/scheduler.h"

namespace astrarium::front {

struct Fed {
  std::int64_t answered = 0, dropped = 0, batches = 0, steps = 0;
};

// As a worker would say it.
inline std::string batch_done(std::int64_t run, Time started, Time finished, const std::vector<Time>& own_times) {
  std::string out;
  PackWriter pack(out);
  pack.array(9);
  pack.text("BatchDone");
  pack.number(static_cast<std::uint64_t>(run));
  for (const Time time : {started, started, started, finished, finished}) pack.number(static_cast<std::uint64_t>(time));
  pack.nil();
  pack.array(own_times.size());
  for (const Time time : own_times) pack.number(static_cast<std::uint64_t>(time));
  return out;
}

class Feed {
 public:
  Feed(const Setup& setup, std::string name, MakeDecider make, double profiled_share)
      : setup_(setup),
        admission_(setup.models.size(), 1 << 30),
        scheduler_(setup.gpus, admission_, nullptr),
        free_(static_cast<std::size_t>(setup.gpus)) {
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
    for (Time now = 0; sent < requests || scheduler_.waiting() > 0 || !ends_.empty();
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
      for (; !ends_.empty() && ends_.top().at <= now; ends_.pop())
        scheduler_.hear(ends_.top().gpu, ends_.top().packet, now);
      next = scheduler_.step(now);
      ++fed.steps;
      work(now, fed);
      for (Ticket* ended : scheduler_.ended) {
        ++(ended->outcome == Outcome::kInTime ? fed.answered : fed.dropped);
        spare.push_back(ended);
      }
      scheduler_.ended.clear();
      if (!ends_.empty()) next = std::min(next, ends_.top().at);
    }
    return fed;
  }

 private:
  static constexpr std::uint64_t kSeed = 1;
  static constexpr std::size_t kTickets = 1 << 17;  // more than are ever under way

  struct End {
    Time at;
    int gpu;
    std::string packet;
    bool operator>(const End& other) const { return at > other.at; }
  };

  void work(Time now, Fed& fed) {
    for (const Order& order : std::exchange(scheduler_.orders, {})) {
      const OrderScan scan(order.packet);
      Time& free = free_[static_cast<std::size_t>(order.worker)];
      const Time start = std::max({now, scan.start, free});
      free = start + execution(scan);
      ends_.push({free, order.worker, batch_done(scan.run, start, free, own_times_)});
      ++fed.batches;
    }
  }

  // What a worker reads of an order that we have written.
  struct OrderScan {
    std::int64_t run = 0, model = 0;
    std::size_t members = 0;
    Time start = 0;
    explicit OrderScan(const std::string& packet) : at_(packet.data() + 10) {  // after the array and its tag
      run = number();
      model = number();
      ++at_;
      members = bytes(4) / kMemberBytes;
      first_ = at_;
      at_ += members * kMemberBytes;
      start = number();
    }

    std::int64_t application(std::size_t member) const {
      std::int64_t number = 0;
      std::memcpy(&number, first_ + (member + 1) * kMemberBytes - sizeof number, sizeof number);
      return number;
    }

   private:
    std::int64_t number() {
      const auto kind = static_cast<unsigned char>(*at_++);
      return kind < 0x80 ? kind : static_cast<std::int64_t>(bytes(8));
    }
    std::uint64_t bytes(int count) {
      std::uint64_t value = 0;
      while (count-- > 0) value = value << 8 | static_cast<unsigned char>(*at_++);
      return value;
    }
    const char *at_, *first_ = nullptr;
  };

  // What a batch takes; `own_times_` is what its members would have taken alone.
  Time execution(const OrderScan& scan) {
    const Model& model = setup_.models[static_cast<std::size_t>(scan.model)];
    own_times_.clear();
    if (!model.dynamic) return model.latency[scan.members];
    for (std::size_t member = 0; member < scan.members; ++member) {
      const std::vector<Time>& history = model.dynamic->history[static_cast<std::size_t>(scan.application(member))];
      own_times_.push_back(history[draws_.next() % history.size()]);
    }
    const Time longest = *std::max_element(own_times_.begin(), own_times_.end());
    return model.dynamic->c0 +
           static_cast<Time>(model.dynamic->c1 * static_cast<double>(scan.members) * static_cast<double>(longest));
  }

  Setup setup_;
  Admission admission_;
  Scheduler scheduler_;
  Draws draws_{kSeed};
  std::vector<Time> free_, own_times_;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
};

}  // namespace astrarium::front
