// The thread of the scheduler: takes tickets from the rings of those who read calls, hears workers, keeps time.
//
// Who lets the scheduler do something has its turn (`exchange.turn`) and its state; a policy in Python thinks in its
// turn, but without the state, so that questions are answered meanwhile: nothing changes until it has decided. They
// wait while a policy is made.
#pragma once

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/cpu_clock.h"
#include "exchange/exchange.h"
#include "scheduler/scheduler.h"

namespace astrarium::front {

struct Packet {
  int worker;
  std::string bytes;
};

class SchedulerThread {
 public:
  // The last origin is Python; its bell rings for packets and troubles too.
  SchedulerThread(Exchange& exchange, int gpus)
      : exchange_(exchange), scheduler_(gpus, exchange.admission, exchange.memory) {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    timer_ = ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (epoll_ < 0 || timer_ < 0) throw std::runtime_error("epoll or timerfd failed");
    listen(exchange_.bell.fd(), kBell);
    listen(timer_, kTimer);
  }

  ~SchedulerThread() {
    stop();
    ::close(epoll_);
    ::close(timer_);
  }
  SchedulerThread(const SchedulerThread&) = delete;
  SchedulerThread& operator=(const SchedulerThread&) = delete;

  void start() {
    if (thread_.joinable()) return;
    others_may_decide([this] {
      const std::unique_lock state(state_, std::try_to_lock);  // a question may be under way: nobody waits for it
      if (state) decide(monotonic_ns());
      return state.owns_lock();
    });
    thread_ = std::thread([this] { run(); });
  }

  void stop() {
    if (!thread_.joinable()) return;
    others_may_decide(nullptr);
    stopping_.store(true);
    exchange_.bell.ring_aloud();
    thread_.join();
  }

  // What follows is for Python.

  void begin(Setup setup, std::string name, MakeDecider make) {
    const Turn turn(*this);
    const Time response = setup.network.response;
    scheduler_.begin(std::move(setup), std::move(name), open_to_questions(std::move(make)), monotonic_ns());
    exchange_.response.store(response, std::memory_order_relaxed);
    tell_at_rest();
    exchange_.bell.ring_aloud();
  }

  void profile(double share, std::uint64_t seed) {
    const Turn turn(*this);
    scheduler_.profile(share, seed);
  }

  void worker_joined(int worker) {
    const Turn turn(*this);
    scheduler_.worker_joined(worker, monotonic_ns());
    exchange_.bell.ring_aloud();
  }

  Blame worker_left(int worker, const Loss& loss) {
    const Turn turn(*this);
    const Blame blame = scheduler_.worker_left(worker, loss, monotonic_ns());
    exchange_.bell.ring_aloud();
    return blame;
  }

  void set_apart(int model, const std::vector<int>& workers) {
    const Turn turn(*this);
    scheduler_.set_apart(model, workers, monotonic_ns());
    exchange_.bell.ring_aloud();
  }

  // Hear a worker from now on, and send it orders.
  void watch(int worker, int socket) {
    const Turn turn(*this);
    stop_reading(worker);
    sockets_[worker] = socket;
    listen(socket, static_cast<std::uint64_t>(worker));
  }

  // Hear what is left of a worker's words, then no more of it.
  void forget(int worker) {
    const Turn turn(*this);
    hear(worker, monotonic_ns(), true);
    stop_reading(worker);
    settle();
  }

  // End all that is open; what arrives later is not looked at any more.
  void close() {
    const Turn turn(*this);
    take_arrivals(monotonic_ns());
    scheduler_.close();
    settle();
  }

  std::vector<Packet> packets() {
    const std::lock_guard lock(news_mutex_);
    return std::exchange(packets_, {});
  }
  std::vector<std::pair<int, std::string>> troubles() {
    const std::lock_guard lock(news_mutex_);
    return std::exchange(troubles_, {});
  }
  // What became of batches since the last call.
  BatchBooks batches() {
    const std::lock_guard state(state_);
    return std::exchange(scheduler_.books, {});
  }

  // A question to the scheduler, between its turns, or while a policy in Python thinks.
  template <class Ask>
  auto ask(Ask question) {
    const std::lock_guard state(state_);
    return question(scheduler_);
  }

  // Since when a policy in Python thinks (no worker's news is read until it has decided), or 0.
  Time thinks_since() const { return thinks_since_.load(std::memory_order_relaxed); }

  // Nanoseconds of CPU time that the thread has had.
  Time cpu_time() const { return cpu_clock_.read(); }

  // One turn: hear, take, decide, send. Returns when the next is due.
  Time turn(bool all_workers = false) {
    const Turn turn(*this);
    const Time now = monotonic_ns();
    if (all_workers) ready_.clear();
    for (const int worker : std::exchange(ready_, {})) hear(worker, now);
    if (all_workers)
      for (const int worker : watched()) hear(worker, now, true);
    return decide(now);
  }

 private:
  class Turn {
   public:
    explicit Turn(SchedulerThread& thread) : turn_(thread.exchange_.turn), state_(thread.state_) {}

   private:
    const std::lock_guard<std::mutex> turn_, state_;
  };

  // In a turn: the state is free for questions while this is there.
  class Thinking {
   public:
    explicit Thinking(SchedulerThread& thread) : thread_(thread) {
      thread_.thinks_since_.store(monotonic_ns(), std::memory_order_relaxed);
      thread_.state_.unlock();
    }
    ~Thinking() {
      thread_.state_.lock();
      thread_.thinks_since_.store(0, std::memory_order_relaxed);
    }
    Thinking(const Thinking&) = delete;
    Thinking& operator=(const Thinking&) = delete;

   private:
    SchedulerThread& thread_;
  };

  // A policy in Python that lets others ask questions while it decides.
  class ThinkingPolicy final : public Decider {
   public:
    ThinkingPolicy(std::unique_ptr<Decider> policy, SchedulerThread& thread)
        : policy_(std::move(policy)), thread_(thread) {}

    bool is_python() const override { return true; }
    bool listens_to_profiler() const override { return policy_->listens_to_profiler(); }
    std::vector<Action> decide(Time now, const Happenings& happenings) override {
      const Thinking thinking(thread_);
      return policy_->decide(now, happenings);
    }
    std::shared_ptr<void> enter() override {
      const Thinking thinking(thread_);
      return policy_->enter();
    }

   private:
    const std::unique_ptr<Decider> policy_;
    SchedulerThread& thread_;
  };

  MakeDecider open_to_questions(MakeDecider make) {
    return [this, make = std::move(make)](const Setup& setup) -> std::unique_ptr<Decider> {
      auto policy = make(setup);
      if (!policy->is_python()) return policy;
      return std::make_unique<ThinkingPolicy>(std::move(policy), *this);
    };
  }

  void others_may_decide(std::function<bool()> how) {
    const std::lock_guard turn(exchange_.turn);
    exchange_.take_turn = std::move(how);
  }

  Time decide(Time now) {
    take_arrivals(now);
    const Time next = scheduler_.asks_python() ? step_in_python(now) : scheduler_.step(now);
    settle();
    set_timer(next);
    return next;
  }

  // What has ended goes home before that. Until Python lets us in more may have happened, which is decided on, too.
  Time step_in_python(Time now) {
    settle();
    const std::shared_ptr<void> entered = scheduler_.enter(now);
    if (entered == nullptr) return scheduler_.step(now);
    const Time since = now;
    now = monotonic_ns();
    if (now - since > kLongWait) {
      hear_busy(now);
      settle();
    }
    take_arrivals(now);
    return scheduler_.step(now);
  }
  static constexpr Time kLongWait = 100'000;  // long beside what hearing all workers takes

  void hear_busy(Time now) {
    for (const int worker : watched())
      if (scheduler_.oldest(worker)) hear(worker, now);
  }

  static constexpr std::uint64_t kBell = ~std::uint64_t{0}, kTimer = kBell - 1;

  void run() {
    cpu_clock_.begin();
    while (!stopping_.load()) {
      turn();
      sleep();
    }
  }

  void sleep() {
    exchange_.bell.sleeps();
    epoll_event events[64];
    const int count = ::epoll_wait(epoll_, events, 64, anything_new() ? 0 : -1);
    bool rung = false;
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kBell) rung = true;
      else if (events[i].data.u64 == kTimer) timer_rang();
      else ready_.push_back(static_cast<int>(events[i].data.u64));
    }
    exchange_.bell.wakes(rung);
  }

  bool anything_new() const {
    for (const auto& origin : exchange_.origins)
      if (!origin->sent.empty()) return true;
    return stopping_.load();
  }

  // A timer that rings too early stays as it is: mostly the next moment is moved on again before that.
  // A moment before there was any is the first one: the kernel takes no other.
  void set_timer(Time next) {
    next = std::max<Time>(next, 1);
    if (next >= set_for_) return;
    set_for_ = next;
    itimerspec when{};
    when.it_value = {next / 1'000'000'000, std::max<Time>(next % 1'000'000'000, 1)};
    ::timerfd_settime(timer_, TFD_TIMER_ABSTIME, &when, nullptr);
  }

  void timer_rang() {
    const Turn turn(*this);
    std::uint64_t count = 0;
    [[maybe_unused]] const auto read = ::read(timer_, &count, sizeof count);
    set_for_ = kForever;
  }

  void listen(int fd, std::uint64_t what) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = what;
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) throw std::runtime_error("epoll_ctl failed");
  }

  void stop_reading(int worker) {
    const auto known = sockets_.find(worker);
    if (known == sockets_.end()) return;
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, known->second, nullptr);
    sockets_.erase(known);
  }

  std::vector<int> watched() const {
    std::vector<int> workers;
    for (const auto& [worker, _] : sockets_) workers.push_back(worker);
    return workers;
  }

  // All that can be read of a worker now; once it has no batch any more, *everything*, or nothing but what epoll tells
  // of.
  void hear(int worker, Time now, bool everything = false) {
    do {
      const auto socket = sockets_.find(worker);
      if (socket == sockets_.end()) return;
      const ssize_t size = ::recv(socket->second, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (size < 0 && errno == ECONNRESET) continue;  // reported once, before what is still there
      if (size <= 0) return stop_reading(worker);
      const std::string_view words(buffer_.data(), static_cast<std::size_t>(size));
      if (!scheduler_.hear(worker, words, now)) pass_on({worker, stamped(words)});
    } while (everything || scheduler_.oldest(worker));
  }

  // A pong says when it came: Python comes to it later.
  static std::string stamped(std::string_view words) {
    constexpr std::string_view kPong =
        "\x93\xa4"
        "Pong";
    std::string news(words);
    if (!words.starts_with(kPong)) return news;
    news[0] = '\x94';
    protocol::PackWriter(news).number(static_cast<std::uint64_t>(monotonic_ns()));
    return news;
  }

  void pass_on(Packet packet) {
    {
      const std::lock_guard lock(news_mutex_);
      packets_.push_back(std::move(packet));
    }
    exchange_.origins.back()->bell.ring();
  }

  void take_arrivals(Time now) {
    Ticket* ticket = nullptr;
    for (const auto& origin : exchange_.origins)
      while (origin->sent.pop(ticket)) scheduler_.arrive(ticket, now);
  }

  // GPUs wait for orders, so these go first; then tickets go home.
  void settle() {
    for (const Order& order : std::exchange(scheduler_.orders, {})) send(order);
    rung_.assign(exchange_.origins.size(), false);
    for (Ticket* ticket : scheduler_.ended) {
      const auto home = static_cast<std::size_t>(ticket->origin);
      if (!exchange_.origins[home]->back.push(ticket)) throw std::logic_error("more tickets than may be open");
      rung_[home] = true;
    }
    scheduler_.ended.clear();
    for (std::size_t home = 0; home < rung_.size(); ++home)
      if (rung_[home]) exchange_.origins[home]->bell.ring();
    tell_at_rest();
  }

  // Network threads take turns only where that is no longer than waking this thread: never with Python.
  void tell_at_rest() {
    exchange_.at_rest.store(scheduler_.at_rest() && !scheduler_.asks_python(), std::memory_order_relaxed);
  }

  void send(const Order& order) {
    const auto socket = sockets_.find(order.worker);
    if (socket == sockets_.end()) return;  // it is gone; its death will be reported
    const ssize_t sent = ::send(socket->second, order.packet.data(), order.packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EMSGSIZE)) return;
    {
      const std::lock_guard lock(news_mutex_);
      troubles_.emplace_back(order.worker,
                             errno == EMSGSIZE ? "was sent an order that is too long" : "stopped reading its orders");
    }
    exchange_.origins.back()->bell.ring();
  }

  Exchange& exchange_;
  std::mutex state_;  // of the scheduler
  std::atomic<Time> thinks_since_ = 0;
  Scheduler scheduler_;
  int epoll_ = -1, timer_ = -1;
  Time set_for_ = kForever;
  std::map<int, int> sockets_;  // by worker
  std::vector<int> ready_;
  std::vector<bool> rung_;
  std::string buffer_ = std::string(std::size_t{1} << 18, '\0');
  std::mutex news_mutex_;  // for what Python asks for
  std::vector<Packet> packets_;
  std::vector<std::pair<int, std::string>> troubles_;
  std::atomic<bool> stopping_ = false;
  CpuClock cpu_clock_;
  std::thread thread_;
};

}  // namespace astrarium::front
