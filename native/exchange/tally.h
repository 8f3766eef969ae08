// What a network thread counts. One thread writes, and any other may read at any time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "common/ring.h"
#include "exchange/ticket.h"

namespace astrarium::front {

// A number with one writer.
class Count {
 public:
  void add(std::int64_t more) {
    value_.store(value_.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  void set(std::int64_t value) { value_.store(value, std::memory_order_relaxed); }
  std::int64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_ = 0;
};

// Twin of PrometheusHistogram in astrarium.server.control.accounts.histogram with TIME_BOUNDS, in nanoseconds.
struct TimeHistogram {
  static constexpr Time kMicrosecond = 1000;
  static constexpr std::array<Time, 13> kBounds = {
      500 * kMicrosecond,  1 * kMillisecond,    2500 * kMicrosecond, 5 * kMillisecond,   10 * kMillisecond,
      25 * kMillisecond,   50 * kMillisecond,   100 * kMillisecond,  250 * kMillisecond, 500 * kMillisecond,
      1000 * kMillisecond, 2500 * kMillisecond, 5000 * kMillisecond};

  static std::size_t place(Time value) {
    std::size_t at = 0;
    while (at < kBounds.size() && value > kBounds[at]) ++at;
    return at;
  }

  void add(Time value) {
    counts[place(value)].add(1);
    sum.add(value);
  }

  std::array<Count, kBounds.size() + 1> counts;
  Count sum;
};

struct TimedCount {
  void add(Time time, std::int64_t more = 1) { count.add(more), ns.add(time); }
  Count count, ns;
};

// Kinds of refusals that need no Python to explain.
enum class RefusedFor { kDeadline, kOverloaded, kUnavailable, kBadRequest };
inline constexpr int kRefusals = 4;

// Twin of what ModelAccounts in astrarium.server.control.accounts.model_accounts counts of calls.
struct alignas(kCacheLine) ModelTally {
  static constexpr int kOutcomes = 5;  // of which kOpen is never counted

  Count accepted, items, declined;
  std::array<std::array<Count, kCauses>, kOutcomes> ended;
  std::array<Count, kRefusals> refused;
  TimeHistogram latency, queueing;
  TimedCount success, fail, queue;

  std::int64_t open() const {
    std::int64_t open_calls = accepted.get();
    for (const auto& causes : ended)
      for (const Count& count : causes) open_calls -= count.get();
    return open_calls;
  }

  void call_ended(Outcome outcome, Cause cause, Time took) {
    ended[static_cast<std::size_t>(outcome)][static_cast<std::size_t>(cause)].add(1);
    (outcome == Outcome::kInTime || outcome == Outcome::kLate ? success : fail).add(took);
  }

  void answered(Time received, Time started, Time answered, int rows) {
    items.add(rows);
    latency.add(answered - received);
    queueing.add(started - received);
    queue.add(started - received, rows);
  }
};

// An answered call, for the timeline.
struct AnsweredCall {
  std::int64_t model, gpu, batch, batch_size, in_time;
  Time received, admitted, dispatched, started, finished, answered;
};

// The last answered calls. A reader leaves out those that are overwritten while it looks.
class AnsweredCalls {
 public:
  static constexpr std::size_t kKept = 2048;

  void add(const AnsweredCall& call) {
    const std::int64_t number = next_.get();
    Slot& slot = slots_[static_cast<std::size_t>(number) % kKept];
    slot.number.store(kNone, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    const std::int64_t fields[kFields] = {call.model,   call.gpu,      call.batch,    call.batch_size,
                                          call.in_time, call.received, call.admitted, call.dispatched,
                                          call.started, call.finished, call.answered};
    for (int i = 0; i < kFields; ++i) slot.fields[i].store(fields[i], std::memory_order_relaxed);
    slot.number.store(number, std::memory_order_release);
    next_.set(number + 1);
  }

  // Those from this number on that are still here; the number becomes that of the next one.
  std::vector<AnsweredCall> since(std::int64_t& number) const {
    const std::int64_t end = next_.get();
    std::vector<AnsweredCall> calls;
    for (std::int64_t at = std::max(number, end - static_cast<std::int64_t>(kKept)); at < end; ++at) {
      const Slot& slot = slots_[static_cast<std::size_t>(at) % kKept];
      if (slot.number.load(std::memory_order_acquire) != at) continue;
      std::int64_t f[kFields];
      for (int i = 0; i < kFields; ++i) f[i] = slot.fields[i].load(std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (slot.number.load(std::memory_order_relaxed) != at) continue;
      calls.push_back({f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[10]});
    }
    number = end;
    return calls;
  }

 private:
  static constexpr int kFields = 11;
  static constexpr std::int64_t kNone = -1;
  struct Slot {
    std::atomic<std::int64_t> number = kNone;
    std::atomic<std::int64_t> fields[kFields] = {};
  };

  Count next_;
  std::vector<Slot> slots_ = std::vector<Slot>(kKept);
};

}  // namespace astrarium::front
