// The long way: what native code does not understand is passed to Python, as it came over the connection.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/units.h"
#include "front/peer.h"
#include "front/reasons.h"

namespace astrarium::front {

// A connection's number is its own among all that there ever are of a network.
using ConnectionNumber = std::uint64_t;

struct Passed {
  enum Kind {
    kData,  // bytes, in the order in which they came
    kEnd,   // the client sends no more
    kSent,  // the client has taken all that it was sent
    kLost,  // the connection is no more; nothing else comes of it
  };
  Kind kind;
  ConnectionNumber connection;
  std::string bytes = {};
  std::string why = {};  // it goes the long way
  Time received = 0;
  int error = 0;   // what ended the connection; 0: it was closed
  Peer peer = {};  // with the first bytes of a connection

  std::size_t cost() const { return sizeof *this + bytes.size() + why.size() + peer.host.size(); }  // bytes of memory
  void forget() { bytes = {}; }
};

// *Passed* has a `cost` and a `connection`. Network threads push, Python's event loop takes when the descriptor is
// readable.
template <class Passed>
class LongWayQueue {
 public:
  LongWayQueue() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (fd_ < 0) throw std::runtime_error("eventfd failed");
  }
  ~LongWayQueue() { ::close(fd_); }
  LongWayQueue(const LongWayQueue&) = delete;
  LongWayQueue& operator=(const LongWayQueue&) = delete;

  int fd() const { return fd_; }

  // False where so much waits, in all or of this connection, that no more should be read from it for now. *number*:
  // what it can be withdrawn by.
  bool push(Passed passed, std::uint64_t* number = nullptr) {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) ring();
    if (number != nullptr) *number = taken_ + waiting_.size();
    bytes_ += passed.cost();
    const std::size_t of_connection = ++waiting_of_[passed.connection];
    waiting_.push_back({std::move(passed), false});
    if (bytes_ <= kMostBytes && of_connection < kMostOfConnection) return true;
    stalled_ = true;
    return false;
  }

  // Nobody needs it any more. False where it was taken already.
  bool withdraw(std::uint64_t number) {
    const std::lock_guard lock(mutex_);
    if (number < taken_) return false;
    Entry& entry = waiting_[number - taken_];
    bytes_ -= entry.passed.cost();
    entry.passed.forget();
    entry.withdrawn = true;
    bytes_ += entry.passed.cost();
    return true;
  }

  // What waits, the first *most*; and whether reading was stopped for it.
  std::pair<std::vector<Passed>, bool> take(std::size_t most = std::numeric_limits<std::size_t>::max()) {
    const std::lock_guard lock(mutex_);
    std::uint64_t count = 0;
    [[maybe_unused]] const auto size_read = ::read(fd_, &count, sizeof count);
    std::vector<Passed> passed;
    while (!waiting_.empty() && passed.size() < most) take_first(passed);
    if (!waiting_.empty()) ring();
    return {std::move(passed), std::exchange(stalled_, false)};
  }

  void count(std::string_view why) { reasons_.count(why); }
  std::map<std::string, std::int64_t> reasons() { return reasons_.all(); }

 private:
  static constexpr std::size_t kMostBytes = 16 << 20;    // an event loop takes so much in some milliseconds
  static constexpr std::size_t kMostOfConnection = 128;  // what one client makes others wait for, about 10 ms
  struct Entry {
    Passed passed;
    bool withdrawn;
  };

  void take_first(std::vector<Passed>& passed) {
    Entry& first = waiting_.front();
    bytes_ -= first.passed.cost();
    const auto of = waiting_of_.find(first.passed.connection);
    if (--of->second == 0) waiting_of_.erase(of);
    if (!first.withdrawn) passed.push_back(std::move(first.passed));
    waiting_.pop_front();
    ++taken_;
  }

  void ring() {
    const std::uint64_t increment = 1;
    [[maybe_unused]] const auto size_written = ::write(fd_, &increment, sizeof increment);
  }

  int fd_;
  std::mutex mutex_;
  std::deque<Entry> waiting_;
  std::uint64_t taken_ = 0;  // how many there ever were before those that wait
  std::unordered_map<ConnectionNumber, std::size_t> waiting_of_;
  std::size_t bytes_ = 0;
  bool stalled_ = false;
  Reasons reasons_;  // how often connections changed to the long way
};

}  // namespace astrarium::front
