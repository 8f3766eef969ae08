// How far a thread has come, told to the others; and the messages it left for them on the way.
#pragma once

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

namespace astrarium {

// Quanta of virtual time that one thread has completed. What it wrote before `advance` is visible after
// `await`: these counters are the only synchronization between the threads.
class alignas(64) Progress {
 public:
  void advance(int completed) {
    // Sequentially consistent, not just release: notify_all looks whether anyone sleeps, and that look
    // must not overtake the store, or a thread that is about to sleep is missed and never woken.
    completed_.store(completed, std::memory_order_seq_cst);
    completed_.notify_all();
  }

  // Returns once at least that many are complete. Offers the core to others a few times (whoever is
  // waited for is often next in line on it), then sleeps.
  void await(int wanted) const {
    int seen = completed_.load(std::memory_order_acquire);
    for (int tries = 0; seen < wanted; ++tries) {
      if (tries < kYields) std::this_thread::yield();
      else completed_.wait(seen, std::memory_order_acquire);
      seen = completed_.load(std::memory_order_acquire);
    }
  }

 private:
  static constexpr int kYields = 20;

  std::atomic<int> completed_{0};  // an int, so that waiting on it is one futex
};

// A ring between one writer and one reader whose places are whole quanta: the messages of a quantum
// travel together, behind one step of the writer's Progress. A place is reused `lead` quanta later.
template <class Message>
class Ring {
 public:
  explicit Ring(int lead) : places_(static_cast<std::size_t>(lead)) {}

  std::vector<Message>& at(int quantum) { return places_[static_cast<std::size_t>(quantum) % places_.size()]; }

 private:
  std::vector<std::vector<Message>> places_;
};

}  // namespace astrarium
