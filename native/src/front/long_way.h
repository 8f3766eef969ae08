// The long way: what native code does not understand is passed to Python, as it came over the connection.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../units.h"
#include "peer.h"

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
  int error = 0;  // what ended the connection; 0: it was closed
  Peer peer = {};  // with the first bytes of a connection

  std::size_t cost() const { return sizeof *this + bytes.size() + why.size() + peer.host.size(); }  // bytes of memory
};

// *Passed* has a `cost`. Network threads push, Python's event loop takes all at once when the descriptor is readable.
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

  // False where so much waits that no more should be read from this connection for now.
  bool push(Passed passed) {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) ring();
    bytes_ += passed.cost();
    waiting_.push_back(std::move(passed));
    if (bytes_ <= kMostBytes) return true;
    stalled_ = true;
    return false;
  }

  // All that waits; and whether reading was stopped for it.
  std::pair<std::vector<Passed>, bool> take() {
    const std::lock_guard lock(mutex_);
    std::uint64_t count = 0;
    [[maybe_unused]] const auto read = ::read(fd_, &count, sizeof count);
    bytes_ = 0;
    return {std::exchange(waiting_, {}), std::exchange(stalled_, false)};
  }

  void counted(std::string_view why) {
    const std::lock_guard lock(mutex_);
    const auto known = reasons_.find(why);
    if (known != reasons_.end()) ++known->second;
    else reasons_.emplace(why, 1);
  }
  std::map<std::string, std::int64_t, std::less<>> reasons() {
    const std::lock_guard lock(mutex_);
    return reasons_;
  }

 private:
  static constexpr std::size_t kMostBytes = 16 << 20;  // an event loop takes so much in some milliseconds

  void ring() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(fd_, &one, sizeof one);
  }

  int fd_;
  std::mutex mutex_;
  std::vector<Passed> waiting_;
  std::size_t bytes_ = 0;
  bool stalled_ = false;
  std::map<std::string, std::int64_t, std::less<>> reasons_;  // how often connections changed to the long way
};

}  // namespace astrarium::front
