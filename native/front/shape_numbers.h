// The numbers that items with several open dimensions have in the place of lengths (astrarium.core.size_grid).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "protocol/answer.h"

namespace astrarium::front {

class ShapeNumbers {
 public:
  // An axis is a dimension of an input, the batch first, and has buckets: the sizes that others are rounded up to.
  struct Axis {
    std::size_t input, dimension;
    std::vector<std::int64_t> buckets;
  };

  // *before* is the last number before each cell, the last axis first.
  ShapeNumbers(std::vector<Axis> axes, std::vector<std::int64_t> before, const std::vector<protocol::Spec>& inputs)
      : axes_(std::move(axes)), before_(std::move(before)) {
    std::size_t cells = 1;
    for (const Axis& axis : axes_) {
      cells *= axis.buckets.size();
      if (axis.input >= inputs.size() || axis.dimension < 1 || axis.dimension > inputs[axis.input].item.size() ||
          !std::is_sorted(axis.buckets.begin(), axis.buckets.end()))
        throw std::invalid_argument("expected dimensions of inputs, and buckets that rise");
    }
    if (axes_.empty() || before_.empty() || before_.size() != cells)
      throw std::invalid_argument("expected a number for each cell");
  }

  // The number of the items of a call; a larger one than all others where they are beyond the last bucket.
  std::int64_t of(const protocol::Call& call) const {
    std::size_t cell = 0;
    std::int64_t place = 0;
    for (const Axis& axis : axes_) {
      const std::int64_t size = call.inputs[axis.input].shape[axis.dimension];
      const auto bucket = std::lower_bound(axis.buckets.begin(), axis.buckets.end(), size);
      if (bucket == axis.buckets.end()) return kTooLarge;
      const std::int64_t below = bucket == axis.buckets.begin() ? 0 : *(bucket - 1);
      place = place * (*bucket - below) + size - below - 1;
      cell = cell * axis.buckets.size() + static_cast<std::size_t>(bucket - axis.buckets.begin());
    }
    return before_[cell] + place + 1;
  }

 private:
  static constexpr std::int64_t kTooLarge = 1 << 30;

  std::vector<Axis> axes_;
  std::vector<std::int64_t> before_;
};

}  // namespace astrarium::front
