// Blocks of shared memory, taken and given back by any thread.
#pragma once

#include <bit>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace astrarium::front {

// Blocks are powers of two and merge with their neighbour when both are free. Free blocks of one order are a list
// through arrays of their own: the memory itself is written by workers, who are not to be trusted with it.
class Arena {
 public:
  static constexpr std::size_t kSmallest = 256;
  static constexpr std::int64_t kNone = -1;

  explicit Arena(std::size_t bytes) {
    if (bytes < kSmallest) throw std::invalid_argument("memory: at least 256 bytes");
    top_ = std::bit_width(bytes / kSmallest) - 1;
    const std::size_t places = std::size_t{1} << top_;
    order_.assign(places, kNotABlock);
    is_free_.assign(places, false);
    next_.assign(places, kEnd);
    last_.assign(places, kEnd);
    free_.assign(static_cast<std::size_t>(top_) + 1, kEnd);
    link(0, top_);
  }

  std::size_t size() const { return kSmallest << top_; }
  std::size_t used() const {
    const std::lock_guard lock(mutex_);
    return used_;
  }

  // What a block of at least *bytes* takes.
  static std::size_t rounded(std::size_t bytes) { return kSmallest << order_of(bytes); }

  // The offset of a block of at least *bytes*, or kNone where none is free.
  std::int64_t take(std::size_t bytes) {
    const int order = order_of(bytes);
    if (order > top_) return kNone;
    const std::lock_guard lock(mutex_);
    int free_order = order;
    while (free_order <= top_ && free_[static_cast<std::size_t>(free_order)] == kEnd) ++free_order;
    if (free_order > top_) return kNone;
    const Place place = free_[static_cast<std::size_t>(free_order)];
    unlink(place, free_order);
    for (--free_order; free_order >= order; --free_order)
      link(place + (Place{1} << free_order), free_order);  // the upper half is not needed
    order_[place] = static_cast<std::int8_t>(order);
    used_ += kSmallest << order;
    return static_cast<std::int64_t>(kSmallest * place);
  }

  void give_back(std::size_t offset) {
    const std::lock_guard lock(mutex_);
    Place place = static_cast<Place>(offset / kSmallest);
    if (offset % kSmallest || place >= order_.size() || order_[place] < 0 || is_free_[place])
      throw std::out_of_range("block");
    int order = order_[place];
    used_ -= kSmallest << order;
    order_[place] = kNotABlock;
    for (; order < top_; ++order) {
      const Place neighbour = place ^ (Place{1} << order);
      if (order_[neighbour] != order || !is_free_[neighbour]) break;
      unlink(neighbour, order);
      place = std::min(place, neighbour);
    }
    link(place, order);
  }

 private:
  using Place = std::uint32_t;  // in units of the smallest block
  static constexpr Place kEnd = ~Place{0};
  static constexpr std::int8_t kNotABlock = -1;

  static int order_of(std::size_t bytes) { return bytes <= kSmallest ? 0 : std::bit_width((bytes - 1) / kSmallest); }

  void link(Place place, int order) {
    Place& first = free_[static_cast<std::size_t>(order)];
    order_[place] = static_cast<std::int8_t>(order);
    is_free_[place] = true;
    next_[place] = first;
    last_[place] = kEnd;
    if (first != kEnd) last_[first] = place;
    first = place;
  }

  void unlink(Place place, int order) {
    const Place next = next_[place], last = last_[place];
    (last == kEnd ? free_[static_cast<std::size_t>(order)] : next_[last]) = next;
    if (next != kEnd) last_[next] = last;
    order_[place] = kNotABlock;
    is_free_[place] = false;
  }

  mutable std::mutex mutex_;
  int top_ = 0;  // the order of the largest block
  std::size_t used_ = 0;
  std::vector<std::int8_t> order_;  // of the block that begins at a place
  std::vector<std::uint8_t> is_free_;
  std::vector<Place> next_, last_;  // among free blocks of one order
  std::vector<Place> free_;         // the first of each order: the one given back last
};

}  // namespace astrarium::front
