// A thread that accepts connections and sleeps in epoll_wait: the loop of every network thread, whatever it speaks.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "common/arrival.h"
#include "common/clock.h"
#include "common/cpu_clock.h"
#include "common/descriptors.h"
#include "exchange/exchange.h"

namespace astrarium::front {

class EventThread {
 public:
  // *listener* is this thread's to close.
  EventThread(Exchange& exchange, int number, int listener)
      : exchange_(exchange),
        origin_(*exchange.origins.at(static_cast<std::size_t>(number))),
        number_(number),
        listener_(listener),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    const bool watches = epoll_ >= 0 && watch(listener_, kListener, EPOLLIN, EPOLL_CTL_ADD) &&
                         watch(origin_.bell.fd(), kBell, EPOLLIN, EPOLL_CTL_ADD);
    if (!watches) throw std::runtime_error("epoll failed");
  }
  virtual ~EventThread() {
    if (listener_ >= 0) ::close(listener_);
    ::close(epoll_);
  }
  EventThread(const EventThread&) = delete;
  EventThread& operator=(const EventThread&) = delete;

  void start() {
    thread_ = std::thread([this] { run(); });
  }

  // Ends at once and closes all connections. Tickets that have not come back stay, for as long as this lives.
  void stop() {
    if (!thread_.joinable()) return;
    post([this] { stopped_ = true; });
    thread_.join();
  }

  // By any thread: does *work* in this one, soon, in the order in which it was posted.
  void post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      posted_.push_back(std::move(work));
      has_posted_.store(true, std::memory_order_release);
    }
    origin_.bell.ring();
  }

  // A connection that was accepted, also by somebody else; posted.
  void adopt(int fd) {
    const int yes = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    stamp_arrivals(fd);
    open(fd);
  }

  // Nanoseconds of CPU time that this thread has had.
  Time cpu_time() const { return cpu_clock_.read(); }

  // Connections for which there was no descriptor.
  std::int64_t turned_away() const { return turned_away_.load(std::memory_order_relaxed); }

  // One round of the thread's loop; by itself only where the thread was not started.
  void turn(bool may_sleep = true) {
    const std::size_t count = wait(may_sleep);
    for (std::size_t i = 0; i < count; ++i) {
      if (i % kSlice == kSlice - 1) hand_on();
      if (events_[i].data.u64 < kBell) happened(events_[i].data.u64, events_[i].events);
      else if (events_[i].data.u64 == kListener) accept_all();
    }
    do_posted();
    if (began_ >= next_sweep_) sweep();
    end_round();
    ended_ = monotonic_ns();
  }

 protected:
  static constexpr Time kSweep = 100 * kMillisecond;       // how closely requests that arrive are timed
  static constexpr Time kIdleSweep = 1000 * kMillisecond;  // and idle connections

  // What a protocol does.
  virtual void open(int fd) = 0;
  virtual void happened(std::uint64_t connection, std::uint32_t events) = 0;
  virtual void answer_all() = 0;
  // Looks at all connections; whether one is to be looked at closely.
  virtual bool sweep_all() = 0;
  // Whether there is anything to look at in a sweep.
  virtual bool has_connections() const = 0;
  virtual void lose_all() = 0;
  virtual void end_round() {}
  // What a client hears for which there is no descriptor.
  virtual std::string_view no_descriptor() const { return {}; }

  void accept_all() {
    const int most = most_descriptors();
    while (listener_ >= 0) {
      const int fd = accepted();
      if (fd >= most) deny(fd);
      else if (fd >= 0) adopt(fd);
      else if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      else if (errno == EMFILE || errno == ENFILE) {
        if (!deny_one()) return rest_from_accepting();
      } else if (errno == ENOBUFS || errno == ENOMEM) return rest_from_accepting();
      else if (errno != EINTR && errno != ECONNABORTED && errno != EPROTO) return;
    }
  }
  void stop_listening() {
    if (listener_ >= 0) ::close(std::exchange(listener_, -1));
  }
  bool watch(int fd, std::uint64_t what, std::uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = what;
    return ::epoll_ctl(epoll_, operation, fd, &event) == 0;
  }

  void sweep_soon() { next_sweep_ = std::min(next_sweep_, began_ + kSweep); }

  // Reads what a connection has sent; `came_` is when that came.
  ssize_t receive_bytes(int fd, char* to, std::size_t size) {
    Time stamp = 0;
    const ssize_t got = receive_stamped(fd, to, size, stamp);
    came_ = stamp ? std::clamp(stamp - clock_ahead_, earliest_, monotonic_ns()) : arrived_;
    return got;
  }

  static int error_of(int fd) {
    int error = 0;
    socklen_t size = sizeof error;
    return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : 0;
  }

  Exchange& exchange_;
  Origin& origin_;
  int number_, listener_;
  Time began_ = 0, arrived_ = 0;  // this round, and what it finds (not before)
  Time came_ = 0;                 // what was read last

 private:
  static constexpr std::uint64_t kListener = ~std::uint64_t{0}, kBell = kListener - 1;
  static constexpr std::size_t kSlice = 64;            // after so many events others have their turn
  static constexpr std::size_t kMostEvents = 1 << 14;  // of a round
  static constexpr Time kAtOnce = 100'000;             // a round that begins so soon did not have to wait

  void run() {
    cpu_clock_.begin();
    do_posted();
    while (!stopped_) turn();
    lose_all();
    stop_listening();
  }

  std::size_t wait(bool may_sleep) {
    origin_.bell.sleeps();
    const bool busy = !may_sleep || !origin_.back.empty() || has_posted_.load(std::memory_order_acquire);
    const int found = ::epoll_wait(epoll_, events_.data(), static_cast<int>(events_.size()), busy ? 0 : until_sweep());
    const auto count = static_cast<std::size_t>(std::max(found, 0));
    bool has_rung = false;
    for (std::size_t i = 0; i < count; ++i) has_rung |= events_[i].data.u64 == kBell;
    origin_.bell.wakes(has_rung);
    begin_round();
    answer_all();  // first: their clients have waited longest
    if (found >= 0) note_rest(count);
    return count;
  }

  // What this round finds came since the last one that found all there was; how long ago, stamps say. Without them it
  // came just now if this round had to wait.
  void begin_round() {
    const Time now = monotonic_ns();
    arrived_ = now - ended_ < kAtOnce ? found_all_ : now;
    began_ = now;
    earliest_ = found_all_;
    clock_ahead_ = wall_clock_ahead();
  }

  // With as many events as there is room for there may be more: there is room for them in the next round.
  void note_rest(std::size_t count) {
    if (count < events_.size()) found_all_ = began_;
    else if (events_.size() < kMostEvents) events_.resize(2 * events_.size());
  }

  // In a long round the scheduler need not wait for calls, nor clients for their answers, until it ends.
  void hand_on() {
    end_round();
    if (!origin_.back.empty()) answer_all();
    do_posted();
  }

  void do_posted() {
    if (!has_posted_.load(std::memory_order_acquire)) return;
    std::vector<std::function<void()>> work;
    {
      const std::lock_guard lock(mutex_);
      work.swap(posted_);
      has_posted_.store(false, std::memory_order_relaxed);
    }
    for (const auto& task : work) task();
  }

  int accepted() { return ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); }

  void deny(int fd) {
    turn_away(fd, no_descriptor());
    turned_away_.fetch_add(1, std::memory_order_relaxed);
  }
  // The next client, with the descriptor that is kept for it; whether it went.
  bool deny_one() {
    spare_.give_up();
    const int fd = accepted();
    if (fd >= 0) deny(fd);
    spare_.take();
    return fd >= 0;
  }

  // There is no descriptor or memory for more connections: look again with the next sweep.
  void rest_from_accepting() {
    watch(listener_, kListener, 0, EPOLL_CTL_MOD);
    listens_ = false;
    sweep_soon();
  }

  int until_sweep() const {
    if (!has_connections() && listens_) return -1;
    const Time left = next_sweep_ - monotonic_ns();
    return left <= 0 ? 0 : static_cast<int>((left + kMillisecond - 1) / kMillisecond);
  }

  void sweep() {
    if (!std::exchange(listens_, true) && listener_ >= 0) watch(listener_, kListener, EPOLLIN, EPOLL_CTL_MOD);
    next_sweep_ = began_ + (sweep_all() ? kSweep : kIdleSweep);
  }

  int epoll_;
  SpareDescriptor spare_;
  std::atomic<std::int64_t> turned_away_ = 0;
  Time ended_ = 0, found_all_ = 0, earliest_ = 0, next_sweep_ = 0, clock_ahead_ = 0;
  std::vector<epoll_event> events_ = std::vector<epoll_event>(kSlice);
  bool stopped_ = false, listens_ = true;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  std::atomic<bool> has_posted_ = false;
  CpuClock cpu_clock_;
  std::thread thread_;
};

}  // namespace astrarium::front
