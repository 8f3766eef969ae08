// From ids to small numbers, for ids that come and go: open addressing, nothing allocated in the long run.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace astrarium {

class IdMap {
 public:
  std::size_t size() const { return size_; }

  void clear() {
    size_ = 0;
    for (Slot& slot : slots_) slot.value = kFree;
  }

  // The value of an id, or -1.
  std::int32_t find(std::int64_t id) const {
    if (slots_.empty()) return kFree;
    for (std::size_t at = home(id);; at = next(at)) {
      if (slots_[at].value == kFree || slots_[at].id == id) return slots_[at].value;
    }
  }

  // The id must be new, its value not negative.
  void add(std::int64_t id, std::int32_t value) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    put(id, value);
    ++size_;
  }

  // Take an id out and return its value; -1 if it is not there.
  std::int32_t take(std::int64_t id) {
    if (find(id) == kFree) return kFree;
    std::size_t hole = home(id);
    while (slots_[hole].id != id) hole = next(hole);
    const std::int32_t value = slots_[hole].value;
    close(hole);
    --size_;
    return value;
  }

 private:
  static constexpr std::int32_t kFree = -1;

  struct Slot {
    std::int64_t id = 0;
    std::int32_t value = kFree;
  };

  std::size_t home(std::int64_t id) const {
    const auto mixed = static_cast<std::uint64_t>(id) * 0x9e3779b97f4a7c15u;
    return static_cast<std::size_t>(mixed >> shift_);
  }
  std::size_t next(std::size_t at) const { return (at + 1) & (slots_.size() - 1); }

  void put(std::int64_t id, std::int32_t value) {
    std::size_t at = home(id);
    while (slots_[at].value != kFree) at = next(at);
    slots_[at] = {id, value};
  }

  // Move back whoever stands behind the hole because its home was taken: a search stops at a free slot.
  void close(std::size_t hole) {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = next(hole); slots_[at].value != kFree; at = next(at)) {
      if (((at - home(slots_[at].id)) & mask) < ((at - hole) & mask)) continue;
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole].value = kFree;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : 2 * slots_.size());
    old.swap(slots_);
    shift_ = 64 - std::countr_zero(slots_.size());
    for (const Slot& slot : old)
      if (slot.value != kFree) put(slot.id, slot.value);
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
  int shift_ = 64;
};

}  // namespace astrarium
