// Gives memory back to the system after a lot of it was used and freed: the allocator alone keeps most of it for ever.
#pragma once

#include <malloc.h>

#include <algorithm>
#include <cstddef>

namespace astrarium::front {

// Of one thread, which says now and then how many bytes are held.
class MemoryReturn {
 public:
  void note(std::size_t bytes) { most_ = std::max(most_, bytes); }

  // Whether there was so much that it is worth looking.
  bool had_much() const { return most_ > kMuch; }

  // To be called about once a second. Looking for what can be given back takes some milliseconds, so that is done only
  // after a peak, and not before it has been over for as long as that.
  void look(std::size_t bytes) {
    note(bytes);
    const bool is_over = had_much() && bytes < most_ / 4;
    if (is_over && was_over_) {
      ::malloc_trim(kKept);
      most_ = bytes;
    }
    was_over_ = is_over;
  }

 private:
  static constexpr std::size_t kMuch = 32 << 20, kKept = 1 << 20;  // bytes

  std::size_t most_ = 0;
  bool was_over_ = false;
};

}  // namespace astrarium::front
