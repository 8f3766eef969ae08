// Answers do not wait for the scheduler: a thread hears the workers first. When a batch is done it sends the
// answers of its plain calls at once, and then passes the news on to the event loop, which keeps the books.
#pragma once

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <time.h>
#include <utility>
#include <vector>

#include "answer.h"
#include "news.h"

namespace astrarium::express {

inline std::int64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

// A client's socket under a number of its own: it stays what it is, even if the event loop closes its own.
class Line {
 public:
  explicit Line(int socket) : socket_(::fcntl(socket, F_DUPFD_CLOEXEC, 0)) {}
  ~Line() {
    if (socket_ >= 0) ::close(socket_);
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  int socket() const { return socket_; }

 private:
  int socket_;
};

struct Parcel {
  std::shared_ptr<const Call> call;  // of one row
  std::shared_ptr<const Line> line;
  std::size_t offset, room;
  std::size_t member;  // its place in the batch
};

struct Packet {
  int worker;
  std::string bytes;
};

// Places are those among the parcels that were expected.
struct Delivered {
  std::int64_t at = 0;
  std::vector<std::size_t> places;
  std::vector<std::pair<std::size_t, std::string>> unsent;  // what is left of some
};

class Courier {
 public:
  Courier(const char* memory, std::size_t size) : memory_(memory), size_(size) {
    epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
    stop_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bell_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (epoll_ < 0 || stop_ < 0 || bell_ < 0) throw std::runtime_error("epoll or eventfd failed");
    listen(stop_, -1);
    thread_ = std::thread([this] { run(); });
  }

  ~Courier() {
    stop();
    for (const int fd : {epoll_, stop_, bell_}) ::close(fd);
  }
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  // From now on nothing is answered here and nothing is heard.
  void stop() {
    if (!thread_.joinable()) return;
    ring(stop_);
    thread_.join();
  }

  int bell() const { return bell_; }  // readable when there are packets

  void watch(int worker, int socket) {
    const std::lock_guard hearing(hearing_);
    silence(worker);
    sockets_[worker] = socket;
    listen(socket, worker);
  }

  // Hear what is left of a worker's words, then no more of it.
  void forget(int worker) {
    const std::lock_guard hearing(hearing_);
    hear(worker);
    silence(worker);
  }

  void expect(std::int64_t run, std::vector<Parcel> parcels) {
    const std::lock_guard lock(mutex_);
    expected_[run] = std::move(parcels);
  }

  // How the answers of a batch were sent; asked once for every batch that was expected.
  Delivered collect(std::int64_t run) {
    const std::lock_guard lock(mutex_);
    expected_.erase(run);
    auto found = delivered_.extract(run);
    return found.empty() ? Delivered{} : std::move(found.mapped());
  }

  bool has_news() const { return news_.load(std::memory_order_relaxed); }  // whether there are packets

  std::vector<Packet> packets() {
    const std::lock_guard lock(mutex_);
    news_.store(false, std::memory_order_relaxed);
    std::uint64_t count = 0;
    if (::read(bell_, &count, sizeof count) < 0 && errno != EAGAIN) throw std::runtime_error("eventfd failed");
    return std::exchange(packets_, {});
  }

 private:
  void listen(int fd, int worker) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = static_cast<std::uint32_t>(worker);
    if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) throw std::runtime_error("epoll_ctl failed");
  }

  static void ring(int bell) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(bell, &one, sizeof one);
  }

  void run() {
    epoll_event events[16];
    while (true) {
      const int count = ::epoll_wait(epoll_, events, 16, -1);
      if (count < 0 && errno != EINTR) return;
      for (int i = 0; i < count; ++i) {
        const int worker = static_cast<int>(static_cast<std::uint32_t>(events[i].data.u64));
        if (worker < 0) return;
        const std::lock_guard hearing(hearing_);
        hear(worker);
      }
    }
  }

  // All that can be read now.
  void hear(int worker) {
    const auto known = sockets_.find(worker);
    if (known == sockets_.end()) return;
    while (true) {
      const ssize_t size = ::recv(known->second, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (size < 0 && errno == ECONNRESET) continue;  // told once, before what is still there
      const std::string_view words(buffer_.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
      if (words.empty()) return silence(worker);
      try {
        if (const auto done = NewsScan(words).batch_done()) deliver(*done);
      } catch (const std::exception&) {  // not answered here: the event loop will say why
      }
      pass_on({worker, std::string(words)});
    }
  }

  void silence(int worker) {
    const auto known = sockets_.find(worker);
    if (known == sockets_.end()) return;
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, known->second, nullptr);
    sockets_.erase(known);
  }

  void pass_on(Packet packet) {
    const std::lock_guard lock(mutex_);
    packets_.push_back(std::move(packet));
    news_.store(true, std::memory_order_relaxed);
    ring(bell_);
  }

  void deliver(const BatchDone& done) {
    const std::vector<Parcel> parcels = expected(done.run);
    if (parcels.empty()) return;
    Delivered sent;
    for (std::size_t at = 0; at < parcels.size(); ++at) {
      try {
        send(parcels[at], at, done, sent);
      } catch (const std::exception&) {  // the others' answers must not be forgotten for this one
      }
    }
    sent.at = monotonic_ns();
    const std::lock_guard lock(mutex_);
    delivered_[done.run] = std::move(sent);
  }

  void send(const Parcel& parcel, std::size_t at, const BatchDone& done, Delivered& sent) {
    const auto rooms = rooms_of(parcel, done);
    if (!rooms) return;
    writer_.write(*parcel.call, *rooms);
    sent.places.push_back(at);
    const std::size_t taken = writer_.send(parcel.line->socket());
    if (taken < writer_.size()) sent.unsent.emplace_back(at, writer_.rest(taken));
  }

  // Where an answer lies; nothing where that cannot be true, which is for others to explain.
  std::optional<Rooms> rooms_of(const Parcel& parcel, const BatchDone& done) const {
    if (!parcel.line || parcel.offset > size_ || parcel.room > size_ - parcel.offset) return std::nullopt;
    Rooms rooms{memory_ + parcel.offset, parcel.room, {}, {}};
    if (!done.shapes) {
      rooms = fixed_rooms(*parcel.call->model, rooms.first, rooms.bytes);
    } else if (parcel.member < done.shapes->size()) {
      for (const Written& one : (*done.shapes)[parcel.member]) rooms.shapes.push_back(one.shape), rooms.sizes.push_back(one.bytes);
    }
    const bool good = fit(*parcel.call->model, rooms) && parcel.call->rows == 1;
    return good ? std::optional(std::move(rooms)) : std::nullopt;
  }

  std::vector<Parcel> expected(std::int64_t run) {
    const std::lock_guard lock(mutex_);
    auto found = expected_.extract(run);
    return found.empty() ? std::vector<Parcel>{} : std::move(found.mapped());
  }

  const char* memory_;
  std::size_t size_;
  int epoll_ = -1, stop_ = -1, bell_ = -1;
  std::mutex hearing_;  // for whoever reads from workers
  std::map<int, int> sockets_;
  std::mutex mutex_;  // for what both threads touch
  std::map<std::int64_t, std::vector<Parcel>> expected_;
  std::map<std::int64_t, Delivered> delivered_;
  std::vector<Packet> packets_;
  std::atomic<bool> news_ = false;
  std::string buffer_ = std::string(std::size_t{1} << 18, '\0');
  AnswerWriter writer_;
  std::thread thread_;
};

}  // namespace astrarium::express
