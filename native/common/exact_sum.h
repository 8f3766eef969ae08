// A sum of doubles that is rounded once, at the end, like Python's math.fsum: the order of the terms does
// not matter, and twins agree to the bit.
#pragma once

#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

namespace astrarium {

class ExactSum {
 public:
  // The parts never overlap, small ones first, and their exact sum is that of all terms (Shewchuk 1997).
  void add(double term) {
    std::size_t kept = 0;
    for (const double part : parts_) {
      const auto [high, low] = two_sum(term, part);
      if (low != 0) parts_[kept++] = low;
      term = high;
    }
    parts_.resize(kept);
    parts_.push_back(term);
  }

  double value() const {
    double high = 0, low = 0;
    std::size_t left = parts_.size();
    while (left > 0 && low == 0) std::tie(high, low) = two_sum(high, parts_[--left]);
    // An error of exactly half a unit was rounded to even: what is left below may say otherwise.
    const bool same_side = left > 0 && (low < 0) == (parts_[left - 1] < 0) && low != 0;
    const auto [doubled, rest] = two_sum(high, 2 * low);
    return same_side && rest == 0 ? doubled : high;
  }

 private:
  static std::pair<double, double> two_sum(double a, double b) {
    const double sum = a + b, of_b = sum - a;
    return {sum, (a - (sum - of_b)) + (b - of_b)};
  }

  std::vector<double> parts_;
};

}  // namespace astrarium
