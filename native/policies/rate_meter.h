// Twin of astrarium.serving.policies._rates.
#pragma once

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "common/units.h"

namespace astrarium {

inline constexpr Time kRateBin = 50 * kMillisecond;
inline constexpr int kRateBins = 100;

class RateMeter {
 public:
  // Move on to the bin of `now`; true if at least one more bin is complete.
  bool roll(Time now) {
    const Time current = now / kRateBin;
    if (current == bin_) return false;
    if (bin_ < 0) {
      bin_ = current;
      return false;
    }
    store(filling_);
    const Time silent = std::min<Time>(current - bin_ - 1, kRateBins);
    for (Time i = 0; i < silent; ++i) store(0);
    bin_ = current;
    filling_ = 0;
    return true;
  }

  void count(std::int64_t requests = 1) { filling_ += requests; }

  // Requests in the complete bins of the window, and its length.
  std::pair<std::int64_t, Time> window() const {
    return {sum_, std::min<std::int64_t>(complete_, kRateBins) * kRateBin};
  }

  // Requests per nanosecond.
  double rate() const {
    const auto [count, length] = window();
    return length > 0 ? static_cast<double>(count) / static_cast<double>(length) : 0.0;
  }

  double dispersion() const {
    const auto bins = std::min<std::int64_t>(complete_, kRateBins);
    if (bins < 2 || sum_ == 0) return 1.0;
    return static_cast<double>(squares_ * bins - sum_ * sum_) / static_cast<double>(bins * sum_);
  }

  // One that has counted what these of the meters have, which have rolled to the same bin.
  static RateMeter sum(const std::vector<RateMeter>& meters, const std::vector<int>& these) {
    RateMeter total;
    std::int64_t bins = 0;
    for (const int index : these) {
      const RateMeter& meter = meters[static_cast<std::size_t>(index)];
      total.bin_ = std::max(total.bin_, meter.bin_);
      bins = std::max(bins, std::min<std::int64_t>(meter.complete_, kRateBins));
    }
    for (std::int64_t back = bins; back >= 0; --back) {
      std::int64_t count = 0;
      for (const int index : these) count += meters[static_cast<std::size_t>(index)].past(back);
      if (back > 0) total.store(count);
      else total.filling_ = count;
    }
    return total;
  }

 private:
  // The count of the bin that is `back` bins before the present one.
  std::int64_t past(std::int64_t back) const {
    if (back == 0) return filling_;
    if (back > std::min<std::int64_t>(complete_, kRateBins)) return 0;
    return counts_[static_cast<std::size_t>((complete_ - back) % kRateBins)];
  }

  void store(std::int64_t count) {
    auto& slot = counts_[static_cast<std::size_t>(complete_ % kRateBins)];
    sum_ += count - slot;
    squares_ += count * count - slot * slot;
    slot = count;
    ++complete_;
  }

  std::array<std::int64_t, kRateBins> counts_{};
  Time bin_ = -1;
  std::int64_t complete_ = 0, sum_ = 0, squares_ = 0, filling_ = 0;
};

}  // namespace astrarium
