// How threads of the front hand things to each other: a ring with one writer and one reader, and a bell.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace astrarium::front {

inline constexpr std::size_t kCacheLine = 64;

// One thread pushes, one other pops; neither ever waits.
template <class T>
class Ring {
 public:
  explicit Ring(std::size_t least) : items_(std::bit_ceil(least)), mask_(items_.size() - 1) {}

  // False where it is full.
  bool push(T item) {
    const std::size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) == items_.size()) return false;
    items_[tail & mask_] = std::move(item);
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  // False where it is empty.
  bool pop(T& item) {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    item = std::move(items_[head & mask_]);
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  // The next one, which stays in the ring until `drop`; false where it is empty.
  bool peek(T& item) const {
    const std::size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return false;
    item = items_[head & mask_];
    return true;
  }
  void drop() { head_.store(head_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

  // By who pushes: the one that has waited longest, which may be popped meanwhile; false where it is empty.
  bool oldest(T& item) const {
    const std::size_t head = head_.load(std::memory_order_acquire);
    if (head == tail_.load(std::memory_order_relaxed)) return false;
    item = items_[head & mask_];
    return true;
  }

  // How many were, in all.
  std::size_t pushed() const { return tail_.load(std::memory_order_relaxed); }
  std::size_t popped() const { return head_.load(std::memory_order_relaxed); }

  bool empty() const { return head_.load(std::memory_order_acquire) == tail_.load(std::memory_order_acquire); }

 private:
  std::vector<T> items_;
  std::size_t mask_;
  alignas(kCacheLine) std::atomic<std::size_t> head_ = 0;
  alignas(kCacheLine) std::atomic<std::size_t> tail_ = 0;
};

// Wakes a thread that sleeps on a file descriptor. Ringing costs a system call only where it does sleep:
//   sleeper: bell.sleeps(); if (nothing to do) epoll_wait(...); bell.wakes();
//   others:  ring.push(...); bell.ring();
class Bell {
 public:
  Bell() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) throw std::runtime_error("eventfd failed");
  }
  ~Bell() { ::close(fd_); }
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  int fd() const { return fd_; }

  // After this the sleeper must look once more for what came before.
  void sleeps() {
    asleep_.store(true, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with the one in `ring`
  }

  // *readable*: whether the descriptor was readable; else there is nothing to read from it.
  void wakes(bool readable = true) {
    asleep_.store(false, std::memory_order_relaxed);
    if (!readable) return;
    std::uint64_t count = 0;
    [[maybe_unused]] const auto size_read = ::read(fd_, &count, sizeof count);
  }

  // Whether ringing would wake somebody; a moment later that may be otherwise.
  bool is_needed() const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return asleep_.load(std::memory_order_relaxed);
  }

  void ring() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_relaxed) && asleep_.exchange(false)) ring_aloud();
  }

  void ring_aloud() {
    const std::uint64_t increment = 1;
    [[maybe_unused]] const auto size_written = ::write(fd_, &increment, sizeof increment);
  }

 private:
  int fd_;
  std::atomic<bool> asleep_ = false;
};

}  // namespace astrarium::front
