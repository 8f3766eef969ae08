// GPUs in virtual time: they take a scheduler's orders, and say what workers would say when the time has come.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"

namespace astrarium::front {

// As a worker would say it.
inline std::string batch_done(std::int64_t tag, Time started, Time finished, const std::vector<Time>& own_times) {
  std::string out;
  PackWriter pack(out);
  pack.array(9);
  pack.text("BatchDone");
  pack.number(static_cast<std::uint64_t>(tag));
  for (const Time time : {started, started, started, finished, finished}) pack.number(static_cast<std::uint64_t>(time));
  pack.nil();
  pack.array(own_times.size());
  for (const Time time : own_times) pack.number(static_cast<std::uint64_t>(time));
  return out;
}

// What a worker reads of an order that we have written.
struct OrderScan {
  std::int64_t tag = 0, model = 0;
  std::size_t members = 0;
  Time start = 0;
  explicit OrderScan(const std::string& packet) : at_(packet.data() + 10) {  // after the array and its name
    tag = number();
    model = number();
    ++at_;
    members = bytes(4) / kMemberBytes;
    first_ = at_;
    at_ += members * kMemberBytes;
    start = number();
  }

  std::int64_t application(std::size_t member) const { return field(member, kMemberBytes / kField - 1); }
  // Where its inputs lie; nothing does in virtual time, and calls that have a length have it here.
  std::int64_t block(std::size_t member) const { return field(member, 0); }

 private:
  static constexpr std::size_t kField = sizeof(std::int64_t);

  std::int64_t field(std::size_t member, std::size_t at) const {
    std::int64_t number = 0;
    std::memcpy(&number, first_ + member * kMemberBytes + at * kField, kField);
    return number;
  }
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

class VirtualGpus {
 public:
  // Batches take *slower* times what the setup says.
  VirtualGpus(const Setup& setup, double slower, std::uint64_t seed)
      : setup_(setup), slower_(slower), draws_(seed), free_(static_cast<std::size_t>(setup.gpus)) {}

  // Takes the orders of a scheduler; returns how many there were.
  std::int64_t take(Scheduler& scheduler, Time now) {
    const std::vector<Order> orders = std::exchange(scheduler.orders, {});
    for (const Order& order : orders) {
      const OrderScan scan(order.packet);
      Time& free = free_[static_cast<std::size_t>(order.worker)];
      const Time start = std::max({now, scan.start, free});
      free = start + execution(scan);
      ends_.push({free, order.worker, batch_done(scan.tag, start, free, own_times_)});
    }
    return std::ssize(orders);
  }

  // Lets the scheduler hear of all batches that have ended.
  void tell(Scheduler& scheduler, Time now) {
    for (; !ends_.empty() && ends_.top().at <= now; ends_.pop())
      scheduler.hear(ends_.top().gpu, ends_.top().packet, now);
  }

  // When the next batch ends.
  Time next() const { return ends_.empty() ? kForever : ends_.top().at; }

 private:
  struct End {
    Time at;
    int gpu;
    std::string packet;
    bool operator>(const End& other) const { return at > other.at; }
  };

  Time execution(const OrderScan& scan) { return static_cast<Time>(slower_ * static_cast<double>(planned(scan))); }

  // What a batch takes; `own_times_` is what its members would have taken alone.
  Time planned(const OrderScan& scan) {
    const Model& model = setup_.models[static_cast<std::size_t>(scan.model)];
    own_times_.clear();
    if (model.lengths) return padded(*model.lengths, scan);
    if (!model.dynamic) return model.latency[scan.members];
    for (std::size_t member = 0; member < scan.members; ++member) {
      const std::vector<Time>& history = model.dynamic->history[static_cast<std::size_t>(scan.application(member))];
      own_times_.push_back(history[draws_.next() % history.size()]);
    }
    const Time longest = *std::max_element(own_times_.begin(), own_times_.end());
    return model.dynamic->c0 +
           static_cast<Time>(model.dynamic->c1 * static_cast<double>(scan.members) * static_cast<double>(longest));
  }

  static Time padded(const Lengths& lengths, const OrderScan& scan) {
    std::int64_t longest = 0;
    for (std::size_t member = 0; member < scan.members; ++member) longest = std::max(longest, scan.block(member));
    return lengths.time(lengths.bucket_of(longest), static_cast<int>(scan.members));
  }

  const Setup& setup_;
  double slower_;
  Draws draws_;
  std::vector<Time> free_, own_times_;
  std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
};

}  // namespace astrarium::front
