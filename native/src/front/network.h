// A network thread: it accepts connections, reads plain calls, hands them to the scheduler and sends their answers.
// It sleeps in epoll_wait and never waits for anybody else.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "../express/desk.h"
#include "clock.h"
#include "connection.h"
#include "exchange.h"
#include "keys.h"
#include "long_way.h"
#include "refusals.h"
#include "request_reader.h"
#include "served.h"
#include "tally.h"

namespace astrarium::front {

// HttpLimits in astrarium.server.settings.
struct HttpLimits {
  std::size_t head_bytes, body_bytes, held_bytes;
  Time request, keep_alive;
  std::int64_t connections;  // 0: any number
};

// What all threads of a network share.
struct NetworkShared {
  NetworkShared(Exchange& exchange, HttpLimits limits, Keys keys, std::string too_slow)
      : exchange(exchange), limits(limits), keys(std::move(keys)), too_slow(std::move(too_slow)) {}

  Exchange& exchange;
  const HttpLimits limits;
  const Keys keys;
  const std::string too_slow;  // the answer to a request that is not whole in time
  LongWayQueue long_way;
  std::atomic<std::int64_t> connections = 0;
  std::atomic<std::size_t> held = 0;  // bytes of requests that are not whole
};

class NetworkThread {
 public:
  // *listener* is this thread's to close.
  NetworkThread(std::shared_ptr<NetworkShared> shared, int number, int listener)
      : tallies(shared->exchange.models),
        kept_(std::move(shared)),
        shared_(*kept_),
        exchange_(shared_.exchange),
        origin_(*exchange_.origins.at(static_cast<std::size_t>(number))),
        number_(number),
        listener_(listener),
        desk_(shared_.limits.head_bytes, shared_.limits.body_bytes),
        reader_(desk_, shared_.keys, shared_.limits.head_bytes),
        refusals_(writer_),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    const bool watches = epoll_ >= 0 && watch(listener_, kListener, EPOLLIN, EPOLL_CTL_ADD) && watch(origin_.bell.fd(), kBell, EPOLLIN, EPOLL_CTL_ADD);
    if (!watches) throw std::runtime_error("epoll failed");
  }

  ~NetworkThread() {
    stop();
    for (const auto& connection : connections_)
      if (connection->fd >= 0) ::close(connection->fd);
    if (listener_ >= 0) ::close(listener_);
    ::close(epoll_);
  }
  NetworkThread(const NetworkThread&) = delete;
  NetworkThread& operator=(const NetworkThread&) = delete;

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

  // Nanoseconds of CPU time that this thread has had.
  Time cpu_time() {
    clockid_t clock{};
    timespec time{};
    if (!thread_.joinable() || pthread_getcpuclockid(thread_.native_handle(), &clock) != 0) return 0;
    clock_gettime(clock, &time);
    return Time{1'000'000'000} * time.tv_sec + time.tv_nsec;
  }

  // One round of the thread's loop; by itself only where the thread was not started.
  void turn(bool may_sleep = true) {
    epoll_event events[kEvents];
    const int count = wait(events, may_sleep);
    for (int i = 0; i < count; ++i)
      if (events[i].data.u64 < kBell) happened(events[i].data.u64, events[i].events);
      else if (events[i].data.u64 == kListener) accept_all();
    do_posted();
    sweep();
    if (std::exchange(has_sent_, false)) exchange_.hand_in();
    ended_ = monotonic_ns();
  }

  // What follows is posted.

  // A connection that somebody else has accepted.
  void adopt(int fd) { open(fd); }

  void serve(const ServedModel& model) { desk_.serve(std::make_shared<const ServedModel>(model)); }
  void withhold(const std::string& name, const std::string& why) { desk_.withhold(name, why); }

  // Takes no more connections, and closes each one as soon as its last answer is sent.
  void drain() {
    accept_all();
    if (listener_ >= 0) ::close(std::exchange(listener_, -1));
    each_open([this](Connection& connection) {
      connection.closes = true;  // Python closes those that go the long way, unless they come back first
      settle(connection);
    });
  }

  // From Python, about a connection that goes the long way.

  void write(ConnectionNumber number, const std::string& bytes) {
    Connection* connection = find(number);
    if (connection == nullptr) return;
    connection->out.append(bytes);
    connection->since = began_;
    send_rest(*connection);
  }
  void tell_when_sent(ConnectionNumber number) {
    Connection* connection = find(number);
    if (connection == nullptr) return;
    connection->tell_sent = true;
    settle(*connection);
  }
  void pause(ConnectionNumber number, bool paused) {
    Connection* connection = find(number);
    if (connection == nullptr) return;
    connection->paused = paused;
    settle(*connection);
  }
  // After all that was written; if it has meanwhile changed to the short way, after the answer there.
  void close_soon(ConnectionNumber number) {
    Connection* connection = find(number);
    if (connection == nullptr) return;
    if (connection->is_long) connection->closing = connection->deaf = true, connection->since = began_;
    else connection->closes = true;
    settle(*connection);
  }
  void abort(ConnectionNumber number) {
    if (Connection* connection = find(number)) lose(*connection, 0);
  }
  // Python has answered all of the first *received* bytes, the rest of the answer is *bytes*, and it wants no more:
  // requests may go the short way again, from before the client has the answer.
  void take_back(ConnectionNumber number, std::uint64_t received, const std::string& bytes) {
    Connection* connection = find(number);
    if (connection == nullptr) return;
    if (connection->is_long && !connection->deaf && connection->passed == received) connection->is_long = connection->paused = false;
    connection->since = began_;
    connection->out.append(bytes);
    send_rest(*connection);
  }
  // Python has taken what waited for it.
  void read_on() {
    each_open([this](Connection& connection) {
      if (std::exchange(connection.stalled, false)) settle(connection);
    });
  }

  std::vector<ModelTally> tallies;  // by model
  AnsweredCalls last_calls;

 private:
  static constexpr std::uint64_t kListener = ~std::uint64_t{0}, kBell = kListener - 1;
  static constexpr int kEvents = 64;
  static constexpr std::size_t kRead = 1 << 18;            // bytes at once, as the event loop's transports do
  static constexpr Time kAtOnce = 100'000;                 // a round that begins so soon did not have to wait
  static constexpr Time kSweep = 100 * kMillisecond;       // how closely requests that arrive are timed
  static constexpr Time kIdleSweep = 1000 * kMillisecond;  // and idle connections

  // ---- the loop

  void run() {
    do_posted();
    while (!stopped_) turn();
    each_open([this](Connection& connection) { lose(connection, 0); });
    if (listener_ >= 0) ::close(std::exchange(listener_, -1));
  }

  int wait(epoll_event* events, bool may_sleep) {
    origin_.bell.sleeps();
    const bool busy = !may_sleep || !origin_.back.empty() || has_posted_.load(std::memory_order_acquire);
    const int count = ::epoll_wait(epoll_, events, kEvents, busy ? 0 : until_sweep());
    bool heard = false;
    for (int i = 0; i < count; ++i) heard |= events[i].data.u64 == kBell;
    origin_.bell.wakes(heard);
    begin_round();
    answer_all();  // first: their clients have waited longest
    return count;
  }

  // What this round finds came while the last one was busy, if this one did not have to wait.
  void begin_round() {
    const Time now = monotonic_ns();
    const Time before = now - ended_ < kAtOnce ? now - began_ : 0;
    began_ = now;
    arrived_ = now - before;
  }

  void do_posted() {
    if (!has_posted_.load(std::memory_order_acquire)) return;
    std::vector<std::function<void()>> work;
    {
      const std::lock_guard lock(mutex_);
      work.swap(posted_);
      has_posted_.store(false, std::memory_order_relaxed);
    }
    for (const auto& one : work) one();
  }

  // ---- connections

  void accept_all() {
    while (listener_ >= 0) {
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd >= 0) open(fd);
      else if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) return rest_from_accepting();
      else if (errno != EINTR && errno != ECONNABORTED && errno != EPROTO) return;
    }
  }

  // There is no descriptor or memory for more connections: look again with the next sweep.
  void rest_from_accepting() {
    watch(listener_, kListener, 0, EPOLL_CTL_MOD);
    listens_ = false;
    next_sweep_ = std::min(next_sweep_, began_ + kSweep);
  }

  void open(int fd) {
    const int yes = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    Connection& connection = new_connection();
    connection.fd = fd;
    connection.since = began_;
    connection.armed = EPOLLIN;
    ++open_;
    shared_.connections.fetch_add(1, std::memory_order_relaxed);
    if (!watch(fd, connection.number, EPOLLIN, EPOLL_CTL_ADD)) lose(connection, 0);
  }

  // A number's parts are its place, how often that was used before, and the thread.
  Connection& new_connection() {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(connections_.size()));
      connections_.push_back(std::make_unique<Connection>());
    }
    Connection& connection = *connections_[free_.back()];
    const std::uint64_t generation = connection.generation & 0xffffffu;
    connection.slot = free_.back();
    connection.number = std::uint64_t{connection.slot} | generation << 24 | static_cast<std::uint64_t>(number_) << 48;
    free_.pop_back();
    return connection;
  }

  // Nothing where it has closed.
  Connection* find(ConnectionNumber number) {
    const std::size_t slot = number & 0xffffffu;
    if (slot >= connections_.size()) return nullptr;
    Connection& connection = *connections_[slot];
    return connection.fd >= 0 && connection.number == number ? &connection : nullptr;
  }

  template <class Work>
  void each_open(Work work) {
    for (std::size_t slot = 0; slot < connections_.size(); ++slot)
      if (connections_[slot]->fd >= 0) work(*connections_[slot]);
  }

  void lose(Connection& connection, int error) {
    if (connection.fd < 0) return;
    if (connection.is_known) pass({Passed::kLost, connection.number, {}, {}, 0, error});
    if (connection.pending != nullptr) connection.pending->connection = nullptr;
    hold_less(connection.in.size());
    ::close(connection.fd);
    const std::uint32_t slot = connection.slot, generation = connection.generation + 1;
    connection = Connection{};
    connection.generation = generation;
    free_.push_back(slot);
    --open_;
    shared_.connections.fetch_sub(1, std::memory_order_relaxed);
  }

  bool watch(int fd, std::uint64_t what, std::uint32_t events, int operation) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = what;
    return ::epoll_ctl(epoll_, operation, fd, &event) == 0;
  }

  void happened(ConnectionNumber number, std::uint32_t events) {
    Connection* connection = find(number);
    if (connection == nullptr) return;
    if (events & EPOLLOUT) {
      connection->since = began_;
      send_rest(*connection);
      if (connection->fd < 0 || connection->number != number) return;
    }
    if (connection->reads() && events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(*connection);
    else if (events & (EPOLLHUP | EPOLLERR)) lose(*connection, error_of(connection->fd));
  }

  static int error_of(int fd) {
    int error = 0;
    socklen_t size = sizeof error;
    return ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : 0;
  }

  // After anything that may have changed what to do next with a connection; it may be closed after this.
  void settle(Connection& connection) {
    if (connection.out.empty()) {
      if (std::exchange(connection.tell_sent, false)) pass({Passed::kSent, connection.number});
      if (connection.closing || (connection.closes && connection.idle())) return lose(connection, 0);
      if (connection.arriving() && connection.in.size() >= connection.need) return read_kept(connection);
    }
    arm(connection);
  }

  void arm(Connection& connection) {
    const std::uint32_t wanted = (connection.reads() ? EPOLLIN : 0u) | (connection.out.empty() ? 0u : EPOLLOUT);
    if (wanted == connection.armed) return;
    connection.armed = wanted;
    watch(connection.fd, connection.number, wanted, EPOLL_CTL_MOD);
  }

  void send_rest(Connection& connection) {
    if (const int error = connection.flush()) return lose(connection, error);
    settle(connection);
  }

  // ---- reading

  void receive(Connection& connection) {
    const ssize_t size = ::recv(connection.fd, buffer_.get(), kRead, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size < 0) return lose(connection, errno);
    if (size == 0) return end(connection);
    const std::string_view data(buffer_.get(), static_cast<std::size_t>(size));
    if (connection.is_long) {
      pass_on(connection, data, {});
      return arm(connection);
    }
    if (connection.pending == nullptr && connection.in.empty()) {
      connection.since = arrived_;
      return read_fresh(connection, data);
    }
    keep(connection, data);
    settle(connection);
  }

  // The client sends no more: as with other servers, that ends the connection.
  void end(Connection& connection) {
    if (!connection.is_long) return lose(connection, 0);
    connection.deaf = true;
    pass({Passed::kEnd, connection.number});
    arm(connection);
  }

  // Requests from bytes that were read just now; what is left of them is kept.
  void read_fresh(Connection& connection, std::string_view data) {
    while (!data.empty() && connection.out.empty() && connection.pending == nullptr) {
      const Reading found = reader_.read(data, spare().call);
      if (found.found == Reading::kOther) return go_long(connection, data, found.why);
      encourage(connection, found);
      if (found.found == Reading::kPart) {
        if (!may_hold(data.size())) return go_long(connection, data, "held");
        connection.need = found.size;
        break;
      }
      const std::string_view why = take(connection);
      if (!why.empty()) return go_long(connection, data, why);
      data.remove_prefix(found.size);
      connection.need = 0;
      if (connection.closing) return settle(connection);
    }
    if (!data.empty()) keep(connection, data);
    arm_after_reading(connection);
  }

  // The same from bytes that were kept.
  void read_kept(Connection& connection) {
    while (connection.arriving() && connection.in.size() >= connection.need) {
      const std::string_view data = connection.in.view();
      const Reading found = reader_.read(data, spare().call);
      if (found.found == Reading::kOther) return go_long_kept(connection, found.why);
      encourage(connection, found);
      if (found.found == Reading::kPart) {
        connection.need = found.size;
        break;
      }
      const std::string_view why = take(connection);
      if (!why.empty()) return go_long_kept(connection, why);
      hold_less(found.size);
      connection.in.consume(found.size);
      connection.need = 0;
      if (connection.closing) return settle(connection);
    }
    if (connection.closes && connection.idle()) return lose(connection, 0);
    arm_after_reading(connection);
  }

  // Tells a client that waits for it to send the body.
  void encourage(Connection& connection, const Reading& found) {
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    if (found.expects && !connection.encouraged) {
      const ssize_t sent = ::send(connection.fd, kContinue.data(), kContinue.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      connection.out.append(kContinue.substr(static_cast<std::size_t>(std::max<ssize_t>(sent, 0))));
    }
    connection.encouraged = found.expects && found.found == Reading::kPart;
  }

  void arm_after_reading(Connection& connection) {
    if (connection.arriving()) next_sweep_ = std::min(next_sweep_, began_ + kSweep);
    arm(connection);
  }

  void keep(Connection& connection, std::string_view data) {
    if (connection.pending == nullptr && !may_hold(data.size())) {
      connection.in.append(data);
      shared_.held.fetch_add(data.size(), std::memory_order_relaxed);
      return go_long_kept(connection, "held");
    }
    connection.in.reserve(connection.need);  // once: a large body is not moved again and again
    connection.in.append(data);
    shared_.held.fetch_add(data.size(), std::memory_order_relaxed);
  }
  bool may_hold(std::size_t more) const {
    return shared_.held.load(std::memory_order_relaxed) + more <= shared_.limits.held_bytes;
  }
  void hold_less(std::size_t less) {
    if (less) shared_.held.fetch_sub(less, std::memory_order_relaxed);
  }

  // ---- calls

  // One that is read into before anybody knows whether its call is taken.
  Pending& spare() {
    if (unused_.empty()) {
      made_.push_back(std::make_unique<Pending>());
      made_.back()->number = static_cast<std::int64_t>(made_.size()) - 1;
      unused_.push_back(made_.back().get());
    }
    return *unused_.back();
  }

  // Takes the call that was read, or refuses it; else says why it goes the long way.
  std::string_view take(Connection& connection) {
    Pending& pending = spare();
    const auto& model = static_cast<const ServedModel&>(*pending.call.model);
    writer_.about(pending.call);
    if (is_full_house()) return "busy";
    const std::string_view why = fill(pending, model, connection.since);
    if (!why.empty()) return why;
    const Time now = monotonic_ns(), objective = pending.deadline - pending.received;
    const Verdict verdict = exchange_.admission.admit(model.index, objective, pending.received, now);
    if (verdict == Verdict::kClosed) return "closed";
    if (verdict != Verdict::kTaken) refuse(connection, model, verdict, objective, now - pending.received);
    else if (!place(pending, model)) refuse_for_memory(connection, model);
    else if (!hand_over(pending, connection)) refuse_as_full(connection, model, pending);
    return {};
  }

  bool is_full_house() const {
    return shared_.limits.connections && shared_.connections.load(std::memory_order_relaxed) >= shared_.limits.connections;
  }

  // Makes a ticket of a call; where that is not possible, somebody else has to explain why.
  std::string_view fill(Pending& pending, const ServedModel& model, Time received) {
    pending.clear();
    pending.origin = number_, pending.model = model.index, pending.rows = static_cast<int>(pending.call.rows);
    const Time objective = model.objective_of(pending.call);
    if (!objective) return "priority";
    pending.received = received, pending.deadline = received + objective;
    pending.application = model.application_of(pending.call);
    if (pending.application < 0) return "application";
    const std::size_t inputs = pending.call.block_bytes(), rows = static_cast<std::size_t>(pending.rows), most = exchange_.arena.size();
    pending.room = model.room(inputs, rows);
    return pending.room > (most - std::min(inputs, most)) / rows ? "memory" : "";
  }

  // Copies the tensors to where workers find them; false where there is no room now.
  bool place(Pending& pending, const ServedModel& model) {
    const std::size_t inputs = pending.call.block_bytes();
    const std::int64_t block = exchange_.arena.take(inputs + static_cast<std::size_t>(pending.rows) * pending.room);
    if (block < 0) return false;
    pending.block = static_cast<std::size_t>(block), pending.replies = pending.block + inputs;
    pending.call.place(exchange_.memory + pending.block);
    if (!model.fixed_inputs)
      for (const express::Part& part : pending.call.inputs) pending.inputs.push_back({part.shape, part.data.size()});
    for (express::Part& part : pending.call.inputs) part.data = {};  // it lay in the request
    return true;
  }

  // False where the scheduler's ring is full, and nothing has happened.
  bool hand_over(Pending& pending, Connection& connection) {
    pending.connection = &connection;
    pending.admitted = monotonic_ns();
    if (!origin_.sent.push(&pending)) return false;
    tallies[static_cast<std::size_t>(pending.model)].accepted.add(1);
    connection.pending = &pending;
    unused_.pop_back();
    return has_sent_ = true;
  }

  void refuse_as_full(Connection& connection, const ServedModel& model, Pending& pending) {
    pending.connection = nullptr;
    exchange_.arena.give_back(pending.block);
    exchange_.admission.ended(model.index);
    refuse(connection, model, Verdict::kFull, 0, 0);
  }

  void refuse(Connection& connection, const ServedModel& model, Verdict verdict, Time objective, Time passed) {
    if (verdict == Verdict::kTooLate) refusals_.too_late(model.name, objective, exchange_.admission.needed(model.index), passed);
    else if (verdict == Verdict::kFull) refusals_.full(exchange_.admission.open());
    else refusals_.backlog(model.name, exchange_.admission.open(model.index), objective);
    turn_away(connection, model, verdict == Verdict::kTooLate ? RefusedFor::kDeadline : RefusedFor::kOverloaded);
  }

  void refuse_for_memory(Connection& connection, const ServedModel& model) {
    exchange_.admission.ended(model.index);
    refusals_.no_memory();
    turn_away(connection, model, RefusedFor::kOverloaded);
  }

  void turn_away(Connection& connection, const ServedModel& model, RefusedFor kind) {
    ModelTally& tally = tallies[static_cast<std::size_t>(model.index)];
    tally.refused[static_cast<std::size_t>(kind)].add(1);
    if (model.was_promised(spare().call)) tally.declined.add(1);
    connection.since = monotonic_ns();
    if (spare().call.closes) connection.closing = connection.deaf = true;
    send_written(connection);
  }

  // ---- answers

  void answer_all() {
    for (Ticket* ticket = nullptr; origin_.back.pop(ticket);) {
      Pending& pending = static_cast<Pending&>(*ticket);
      came_back(pending);
      pending.trim();
      unused_.push_back(&pending);
    }
  }

  void came_back(Pending& pending) {
    Connection* connection = std::exchange(pending.connection, nullptr);
    writer_.about(pending.call);
    const auto& model = static_cast<const ServedModel&>(*pending.call.model);
    const bool has_answer = pending.outcome == Outcome::kInTime && write_answer(pending, model);
    if (pending.outcome != Outcome::kInTime) refusals_.ended(model.name, pending);
    if (connection != nullptr) send_written(*connection);
    const Time now = monotonic_ns();
    note(pending, model, has_answer, now);
    exchange_.admission.ended(pending.model);
    exchange_.arena.give_back(pending.block);
    if (connection == nullptr) return;
    connection->pending = nullptr;
    connection->since = now;
    if (pending.call.closes) connection->closing = connection->deaf = true;
    settle(*connection);
  }

  void note(const Pending& pending, const ServedModel& model, bool has_answer, Time now) {
    ModelTally& tally = tallies[static_cast<std::size_t>(pending.model)];
    Outcome outcome = pending.outcome;
    if (outcome == Outcome::kInTime && now > pending.deadline) outcome = Outcome::kLate;
    tally.call_ended(outcome, pending.cause, now - pending.received);
    if (outcome == Outcome::kDropped && pending.cause != Cause::kUnserved && model.was_promised(pending.call)) tally.declined.add(1);
    if (!has_answer) return;
    tally.answered(pending.received, pending.started, now, pending.rows);
    exchange_.admission.answered(pending.model, now - pending.planned_end - exchange_.response.load(std::memory_order_relaxed));
    last_calls.add({pending.model, pending.gpu, pending.batch, pending.batch_size, outcome == Outcome::kInTime, pending.received,
                    pending.admitted, pending.dispatched, pending.started, pending.finished, now});
  }

  // Writes the answer, or why there is none where the rows' answers do not belong together or cannot be where they
  // should be.
  bool write_answer(const Pending& pending, const ServedModel& model) {
    for (const auto& row : pending.reply_shapes)
      if (!alike(row, pending.reply_shapes.front())) return refusals_.unequal(model.name), false;
    const bool varies = !pending.reply_shapes.empty() && !pending.reply_shapes.front().empty();
    express::Rooms& rooms = !varies && model.reply_bytes ? model.rooms : rooms_of(pending);
    rooms.first = exchange_.memory + pending.replies;
    rooms.bytes = pending.room;
    if (!fit(model, rooms, pending.rows)) return refusals_.not_there(), false;
    if (!writer_.write(pending.call, rooms, pending.call.timed ? stage_line(pending) : std::string())) refusals_.no_text(writer_.no_text());
    return true;
  }

  // How long each stage took, in microseconds: as stage_line in astrarium.server.timelines.
  static std::string stage_line(const Pending& pending) {
    const Time times[] = {pending.received, pending.admitted, pending.dispatched, pending.started, pending.finished, monotonic_ns()};
    constexpr std::string_view kBetween[] = {"admit=", ", queue=", ", hand_over=", ", execute=", ", answer="};
    std::string line = "x-astrarium-timeline: ";
    for (std::size_t i = 0; i < std::size(kBetween); ++i) line.append(kBetween[i]) += std::to_string((times[i + 1] - times[i]) / 1000);
    return line + ", batch=" + std::to_string(pending.batch_size) + ", gpu=" + std::to_string(pending.gpu) + "\r\n";
  }

  // By what the worker said.
  express::Rooms& rooms_of(const Pending& pending) {
    const std::size_t count = pending.reply_shapes.empty() ? 0 : pending.reply_shapes.front().size();
    rooms_.shapes.resize(count), rooms_.sizes.clear();
    for (std::size_t at = 0; at < count; ++at) rooms_.shapes[at] = pending.reply_shapes.front()[at].shape;
    for (const auto& row : pending.reply_shapes)
      for (const Written& one : row) rooms_.sizes.push_back(one.bytes);
    return rooms_;
  }

  static bool alike(const std::vector<Written>& one, const std::vector<Written>& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                      [](const Written& a, const Written& b) { return a.shape == b.shape; });
  }

  // Sends what the writer has; what the socket does not take is kept.
  void send_written(Connection& connection) {
    const std::size_t sent = writer_.send(connection.fd);
    if (sent < writer_.size()) writer_.rest(sent, connection.out);
  }

  // ---- the long way

  void go_long_kept(Connection& connection, std::string_view why) {
    const std::string data(connection.in.view());
    hold_less(data.size());
    connection.in.clear();
    connection.need = 0;
    go_long(connection, data, why);
  }

  void go_long(Connection& connection, std::string_view data, std::string_view why) {
    shared_.long_way.counted(why);
    connection.is_long = connection.is_known = true;
    connection.encouraged = false;
    connection.need = 0;
    pass_on(connection, data, why);
    arm(connection);
  }

  void pass_on(Connection& connection, std::string_view data, std::string_view why) {
    connection.passed += data.size();
    if (!pass({Passed::kData, connection.number, std::string(data), std::string(why), arrived_})) connection.stalled = true;
  }

  bool pass(Passed passed) { return shared_.long_way.push(std::move(passed)); }

  // ---- time

  int until_sweep() const {
    if (!open_ && listens_) return -1;
    const Time left = next_sweep_ - monotonic_ns();
    return left <= 0 ? 0 : static_cast<int>((left + kMillisecond - 1) / kMillisecond);
  }

  void sweep() {
    const Time now = began_;
    if (now < next_sweep_) return;
    if (!std::exchange(listens_, true) && listener_ >= 0) watch(listener_, kListener, EPOLLIN, EPOLL_CTL_MOD);
    bool arriving = false;
    each_open([&](Connection& connection) {
      if (connection.arriving()) {
        if (now - connection.since > shared_.limits.request) too_slow(connection);
        else arriving = true;
      } else if (now - connection.since > shared_.limits.keep_alive && is_left_alone(connection)) {
        lose(connection, 0);
      }
    });
    next_sweep_ = now + (arriving ? kSweep : kIdleSweep);
  }

  // Idle, or a client that takes none of its answer. Python times those of the long way itself, until it closes them.
  static bool is_left_alone(const Connection& connection) {
    if (connection.is_long) return connection.closing && !connection.out.empty();
    return connection.pending == nullptr;
  }

  void too_slow(Connection& connection) {
    hold_less(connection.in.size());
    connection.in.clear();
    connection.out.append(shared_.too_slow);
    connection.closing = connection.deaf = true;
    send_rest(connection);
  }

  std::shared_ptr<NetworkShared> kept_;
  NetworkShared& shared_;
  Exchange& exchange_;
  Origin& origin_;
  int number_, listener_;
  express::Desk desk_;
  RequestReader reader_;
  express::AnswerWriter writer_;
  Refusals refusals_;
  int epoll_;
  std::unique_ptr<char[]> buffer_ = std::make_unique_for_overwrite<char[]>(kRead);
  express::Rooms rooms_{nullptr, 0, {}, {}};

  std::vector<std::unique_ptr<Connection>> connections_;  // by slot
  std::vector<std::uint32_t> free_;
  std::size_t open_ = 0;
  std::vector<std::unique_ptr<Pending>> made_;
  std::vector<Pending*> unused_;

  Time began_ = 0, ended_ = 0, arrived_ = 0, next_sweep_ = 0;
  bool has_sent_ = false, stopped_ = false, listens_ = true;

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  std::atomic<bool> has_posted_ = false;
  std::thread thread_;
};

}  // namespace astrarium::front
