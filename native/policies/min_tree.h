// Twin of astrarium.serving.policies._min_tree: who is smallest, and who is the first small enough, in O(log n).
#pragma once

#include <bit>
#include <cstddef>
#include <vector>

#include "common/units.h"

namespace astrarium {

class MinTree {
 public:
  explicit MinTree(std::size_t slots, Time value = kForever)
      : width_(std::bit_ceil(slots < 1 ? std::size_t{1} : slots)), values_(2 * width_, kForever) {
    for (std::size_t slot = 0; slot < slots; ++slot) set(static_cast<int>(slot), value);
  }

  Time operator[](int slot) const { return values_[width_ + static_cast<std::size_t>(slot)]; }
  Time least() const { return values_[1]; }

  void set(int slot, Time value) {
    std::size_t node = width_ + static_cast<std::size_t>(slot);
    if (values_[node] == value) return;
    values_[node] = value;
    while (node > 1) {
      const Time sibling = values_[node ^ 1];
      node >>= 1;
      const Time smaller = value < sibling ? value : sibling;
      if (values_[node] == smaller) return;
      values_[node] = value = smaller;
    }
  }

  // The smallest slot whose value is at most the bound, or -1.
  int first_at_most(Time bound) const {
    if (values_[1] > bound) return -1;
    std::size_t node = 1;
    while (node < width_) {
      node *= 2;
      if (values_[node] > bound) ++node;
    }
    return static_cast<int>(node - width_);
  }

  // The smallest slot that holds the least value; -1 where every slot holds kForever.
  int argmin() const { return values_[1] >= kForever ? -1 : first_at_most(values_[1]); }

 private:
  std::size_t width_;
  std::vector<Time> values_;
};

}  // namespace astrarium
