// Numbers that belong together are changed together: by one thread, between two steps of a sequence that others look
// at. A reader takes what it has read only if the sequence stood still meanwhile, so it never sees half of a change. To
// the writer this costs two stores to a cache line that it writes anyway.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace astrarium::front {

class SequenceLock {
 public:
  // Odd while a change is under way.
  std::uint64_t begin_read() const { return step_.load(std::memory_order_acquire); }
  bool is_unchanged(std::uint64_t since) const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return since % 2 == 0 && step_.load(std::memory_order_relaxed) == since;
  }

  // Reads until nothing has changed meanwhile; what it is for changes in less than a microsecond.
  template <class Read>
  auto read(Read numbers) const {
    for (;;) {
      const std::uint64_t before = begin_read();
      auto result = numbers();
      if (is_unchanged(before)) return result;
      std::this_thread::yield();  // the writer may have lost its processor in the middle of a change
    }
  }

 private:
  friend class SequenceWrite;
  std::atomic<std::uint64_t> step_ = 0;
};

// While it is there a change is under way. Only the sequence's one writer makes them, never one inside another.
class SequenceWrite {
 public:
  explicit SequenceWrite(SequenceLock& sequence) : step_(sequence.step_) {
    step_.store(step_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
  }
  ~SequenceWrite() { step_.store(step_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  SequenceWrite(const SequenceWrite&) = delete;
  SequenceWrite& operator=(const SequenceWrite&) = delete;

 private:
  std::atomic<std::uint64_t>& step_;
};

}  // namespace astrarium::front
