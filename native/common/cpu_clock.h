// The CPU time of a thread, for others to read.
#pragma once

#include <pthread.h>
#include <time.h>

#include <atomic>

#include "common/units.h"

namespace astrarium::front {

class CpuClock {
 public:
  // By the thread itself, before anything else.
  void begin() {
    clockid_t clock{};
    if (pthread_getcpuclockid(pthread_self(), &clock) != 0) return;
    clock_.store(clock, std::memory_order_relaxed);
    has_begun_.store(true, std::memory_order_release);
  }

  // By any thread: nanoseconds that the thread has had; 0: it has not begun, or has ended.
  Time read() const {
    timespec time{};
    if (!has_begun_.load(std::memory_order_acquire)) return 0;
    if (clock_gettime(clock_.load(std::memory_order_relaxed), &time) != 0) return 0;
    return Time{1'000'000'000} * time.tv_sec + time.tv_nsec;
  }

 private:
  std::atomic<clockid_t> clock_{};
  std::atomic<bool> has_begun_ = false;
};

}  // namespace astrarium::front
