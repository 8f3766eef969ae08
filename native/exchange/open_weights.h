// What is open of a model, by how long its clients wait: the nearest deadline is served first, so that a call waits for
// what is due before it, and not for those who have more time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "common/units.h"
#include "exchange/call_cost.h"

namespace astrarium::front {

class OpenWeights {
 public:
  void add(Weight weight, Time objective) {
    total_.fetch_add(weight, std::memory_order_relaxed);
    by_class_[class_of(objective)].fetch_add(weight, std::memory_order_relaxed);
  }

  Weight total() const { return total_.load(std::memory_order_relaxed); }

  // How much of it is due before a call that comes now. Of those who wait longer it is those who came long ago: if they
  // came evenly, no more than the part of their time that this call has.
  Weight ahead_of(Time objective) const {
    const std::size_t own = class_of(objective);
    Weight ahead = 0;
    for (std::size_t at = 0; at <= own; ++at) ahead += of(at);
    for (std::size_t at = own + 1; at < kClasses; ++at)
      if (const Weight weight = of(at))
        ahead += static_cast<Weight>(static_cast<double>(weight) * static_cast<double>(objective) /
                                     static_cast<double>(kMillisecond << (at - 1)));
    return ahead;
  }

 private:
  // The first has less than a millisecond, each other one twice as much as the one before.
  static constexpr std::size_t kClasses = 24;

  static std::size_t class_of(Time objective) {
    const auto milliseconds = static_cast<std::uint64_t>(std::max<Time>(objective, 0) / kMillisecond);
    return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(milliseconds)), kClasses - 1);
  }
  Weight of(std::size_t at) const { return by_class_[at].load(std::memory_order_relaxed); }

  std::atomic<Weight> total_ = 0;
  std::array<std::atomic<Weight>, kClasses> by_class_{};
};

}  // namespace astrarium::front
