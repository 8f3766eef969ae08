// What a call costs the GPUs of its model, by its length.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "policies/contract.h"

namespace astrarium::front {

// GPU time, as a share of its best batch, beside that of a plain call: a weight of three plain calls is answered in the
// time of three.
using Weight = std::int64_t;
inline constexpr Weight kPlainCall = 1024;

struct CallCost {
  Weight weight = kPlainCall;  // among the open calls of its model
  Time needed = 0;             // alone on an idle GPU, from the decision on it to its answer
  std::int64_t length = 0;     // of the call that this is about; 0: the same for all, or not known
};

// What calls of a model cost by their length, in steps; the longest ones are the plain calls. Threads that read calls
// ask, and the scheduler plans.
class CallCosts {
 public:
  static constexpr std::size_t kMost = 128;  // steps: each is several buckets of a model that has more

  // *delays*: of the network, there and back.
  void plan(const Model& model, Time delays) {
    std::size_t steps = 0;
    if (!model.lengths) set(steps++, kAnyLength, kPlainCall, model.latency[1] + delays);
    else
      for (const std::size_t bucket : ends_of_steps(model.lengths->longest.size()))
        set(steps++, model.lengths->longest[bucket], weight(*model.lengths, bucket),
            model.lengths->time(static_cast<int>(bucket), 1) + delays);
    by_length_.store(model.lengths.has_value(), std::memory_order_relaxed);
    count_.store(steps, std::memory_order_relaxed);
  }

  // A length of 0 is not known: the call may be as short as any.
  CallCost of(std::int64_t length) const {
    const std::size_t count = count_.load(std::memory_order_relaxed);
    std::size_t at = 0;
    while (at + 1 < count && length > steps_[at].longest.load(std::memory_order_relaxed)) ++at;
    return {steps_[at].weight.load(std::memory_order_relaxed), steps_[at].needed.load(std::memory_order_relaxed),
            by_length_.load(std::memory_order_relaxed) ? length : 0};
  }

 private:
  static constexpr std::int64_t kAnyLength = std::numeric_limits<std::int64_t>::max();

  struct Step {
    std::atomic<std::int64_t> longest = kAnyLength;
    std::atomic<Weight> weight = kPlainCall;
    std::atomic<Time> needed = 0;
  };

  // The last bucket of each step, for all of whose lengths it stands.
  static std::vector<std::size_t> ends_of_steps(std::size_t buckets) {
    const std::size_t wide = (buckets + kMost - 1) / kMost;
    std::vector<std::size_t> ends;
    for (std::size_t first = 0; first < buckets; first += wide) ends.push_back(std::min(first + wide, buckets) - 1);
    return ends;
  }

  static Weight weight(const Lengths& lengths, std::size_t bucket) {
    const double share = best_time(lengths.latency[bucket]) / best_time(lengths.latency.back());
    return std::max<Weight>(1, static_cast<Weight>(kPlainCall * std::min(1.0, share) + 0.5));
  }

  // Of one call, in the best batch.
  static double best_time(const std::vector<Time>& latency) {
    double best = static_cast<double>(latency[1]);
    for (std::size_t size = 2; size + 1 < latency.size(); ++size)
      best = std::min(best, static_cast<double>(latency[size]) / static_cast<double>(size));
    return std::max(1.0, best);
  }

  void set(std::size_t at, std::int64_t longest, Weight weight, Time needed) {
    steps_[at].longest.store(longest, std::memory_order_relaxed);
    steps_[at].weight.store(weight, std::memory_order_relaxed);
    steps_[at].needed.store(needed, std::memory_order_relaxed);
  }

  std::array<Step, kMost> steps_;
  std::atomic<std::size_t> count_ = 0;
  std::atomic<bool> by_length_ = false;
};

}  // namespace astrarium::front
