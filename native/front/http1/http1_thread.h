// A network thread: it accepts connections, reads plain calls, hands them to the scheduler and sends their answers.
// It sleeps in epoll_wait and never waits for anybody else.
#pragma once

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "front/calls/call_tickets.h"
#include "front/connection_table.h"
#include "front/event_thread.h"
#include "front/http1/connection.h"
#include "front/http1/request_reader.h"
#include "front/http_limits.h"
#include "front/keys.h"
#include "front/long_way.h"
#include "protocol/plain_calls.h"

namespace astrarium::front {

// What all threads of a network share.
struct Http1Shared {
  Http1Shared(Exchange& exchange, HttpLimits limits, Keys keys, std::string too_slow, std::string no_descriptor)
      : exchange(exchange),
        limits(limits),
        keys(std::move(keys)),
        too_slow(std::move(too_slow)),
        no_descriptor(std::move(no_descriptor)) {}

  Exchange& exchange;
  const HttpLimits limits;
  const Keys keys;
  const std::string too_slow;       // the answer to a request that is not whole in time
  const std::string no_descriptor;  // and to a connection for which there is none
  LongWayQueue<Passed> long_way;
  std::atomic<std::int64_t> connections = 0;
  std::atomic<std::size_t> held = 0;  // bytes of requests that are not whole
};

class Http1Thread : public EventThread {
 public:
  Http1Thread(std::shared_ptr<Http1Shared> shared, int number, int listener)
      : EventThread(shared->exchange, number, listener),
        shared_owner_(std::move(shared)),
        shared_(*shared_owner_),
        calls_(exchange_, number, came_,
               [this](auto all) { post([this, all = std::move(all)] { take_tokens(all); }); }),
        plain_calls_(shared_.limits.head_bytes, shared_.limits.body_bytes),
        reader_(plain_calls_, shared_.keys, shared_.limits.head_bytes) {}

  ~Http1Thread() override {
    stop();
    connections_.for_each([](const Connection& connection) { ::close(connection.fd); });
  }

  // What follows is posted.

  void take_tokens(const std::vector<TextOwner::Made>& all) {
    calls_.take_tokens(all, [this](const ServedModel& model) {
      const ServedModel* now = served(plain_calls_, model.name);
      return now == nullptr || now->takes_calls_of(model);  // one that is being unloaded ends its calls before
    });
    answer_all();
  }
  void serve(const ServedModel& model) { plain_calls_.serve(std::make_shared<const ServedModel>(model)); }
  void withhold(const std::string& name, const std::string& why) { plain_calls_.withhold(name, why); }

  // Takes no more connections, and closes each one as soon as its last answer is sent.
  void drain() {
    accept_all();
    stop_listening();
    connections_.for_each([this](Connection& connection) {
      connection.closes = true;  // Python closes those that go the long way, unless they come back first
      settle(connection);
    });
  }

  // From Python, about a connection that goes the long way.

  void write(ConnectionNumber number, const std::string& bytes) {
    Connection* connection = connections_.find(number);
    if (connection == nullptr) return;
    connection->out.append(bytes);
    connection->since = began_;
    send_rest(*connection);
  }
  void tell_when_sent(ConnectionNumber number) {
    Connection* connection = connections_.find(number);
    if (connection == nullptr) return;
    connection->tell_sent = true;
    settle(*connection);
  }
  void pause(ConnectionNumber number, bool paused) {
    Connection* connection = connections_.find(number);
    if (connection == nullptr) return;
    connection->paused = paused;
    settle(*connection);
  }
  // After all that was written; if it has meanwhile changed to the short way, after the answer there.
  void close_soon(ConnectionNumber number) {
    Connection* connection = connections_.find(number);
    if (connection == nullptr) return;
    if (connection->is_long) {
      connection->closing = connection->input_closed = true;
      connection->since = began_;
    } else connection->closes = true;
    settle(*connection);
  }
  // The same after a refusal: the client may be in the middle of sending, and is to read it all the same.
  void linger(ConnectionNumber number) {
    Connection* connection = connections_.find(number);
    if (connection == nullptr) return;
    connection->lingers = true;
    close_soon(number);
  }
  void abort(ConnectionNumber number) {
    if (Connection* connection = connections_.find(number)) lose(*connection, 0);
  }
  // Python has answered all of the first *received* bytes, the rest of the answer is *bytes*, and it wants no more:
  // requests may go the short way again, from before the client has the answer.
  void take_back(ConnectionNumber number, std::uint64_t received, const std::string& bytes) {
    Connection* connection = connections_.find(number);
    if (connection == nullptr) return;
    if (connection->is_long && !connection->input_closed && connection->passed == received)
      connection->is_long = connection->paused = false;
    connection->since = began_;
    connection->out.append(bytes);
    send_rest(*connection);
  }
  // Python has taken what waited for it.
  void read_on() {
    connections_.for_each([this](Connection& connection) {
      if (std::exchange(connection.stalled, false)) settle(connection);
    });
  }

 private:
  static constexpr std::size_t kRead = 1 << 18;         // bytes at once, as the event loop's transports do
  static constexpr Time kLinger = 2000 * kMillisecond;  // for a client to read the last answer and to close
  // Bytes of a request that may be large: where its tensors go is not known yet.
  static constexpr std::size_t kLook = 1 << 14;

  void open(int fd) override {
    Connection& connection = connections_.add(fd, number_);
    connection.since = began_;
    connection.armed = EPOLLIN;
    shared_.connections.fetch_add(1, std::memory_order_relaxed);
    if (!watch(fd, connection.number, EPOLLIN, EPOLL_CTL_ADD)) lose(connection, 0);
  }

  void lose(Connection& connection, int error) {
    if (connection.fd < 0) return;
    if (connection.is_known) pass({Passed::kLost, connection.number, {}, {}, 0, error});
    CallTickets::leave(connection);
    if (connection.incoming) calls_.abandon(*connection.incoming);
    hold_less(connection.in.size());
    ::close(connection.fd);
    connections_.remove(connection);
    shared_.connections.fetch_sub(1, std::memory_order_relaxed);
  }
  // Closes a connection whose last answer is sent. A socket with bytes that nobody has read would be reset, and the
  // answer with it: so what a client still sends is read and thrown away for a while (RFC 9112, 9.6).
  void leave(Connection& connection) {
    int unread = 0;
    ::ioctl(connection.fd, FIONREAD, &unread);
    if (unread == 0 && !connection.lingers) return lose(connection, 0);
    if (!std::exchange(connection.left, true)) {
      ::shutdown(connection.fd, SHUT_WR);
      connection.since = began_;
    }
    connection.closing = connection.input_closed = true;
    sweep_soon();
    arm(connection);
  }
  void lose_all() override {
    connections_.for_each([this](Connection& connection) { lose(connection, 0); });
  }
  std::string_view no_descriptor() const override { return shared_.no_descriptor; }
  bool has_connections() const override { return !connections_.empty(); }

  void happened(ConnectionNumber number, std::uint32_t events) override {
    Connection* connection = connections_.find(number);
    if (connection == nullptr) return;
    if (events & EPOLLOUT) {
      connection->since = began_;
      send_rest(*connection);
      if (connection->fd < 0 || connection->number != number) return;
    }
    if (connection->reads() && events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(*connection);
    else if (events & (EPOLLHUP | EPOLLERR)) lose(*connection, error_of(connection->fd));
  }

  // After anything that may have changed what to do next with a connection; it may be closed after this.
  void settle(Connection& connection) {
    if (connection.out.empty()) {
      if (std::exchange(connection.tell_sent, false)) pass({Passed::kSent, connection.number});
      if (connection.closing || (connection.closes && connection.idle())) return leave(connection);
      if (connection.arriving() && !connection.incoming && connection.in.size() >= connection.need)
        return read_kept(connection);
      if (connection.is_over()) return lose(connection, 0);
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

  void receive(Connection& connection) {
    if (connection.left) return throw_away(connection);
    if (connection.incoming) return receive_body(connection);
    const bool looks = connection.large && connection.in.empty() && connection.ticket == nullptr && !connection.is_long;
    const ssize_t size = receive_bytes(connection.fd, buffer_.get(), looks ? kLook : kRead);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size < 0) return lose(connection, errno);
    if (size == 0) return end(connection);
    const std::string_view data(buffer_.get(), static_cast<std::size_t>(size));
    if (connection.is_long) {
      pass_on(connection, data, {});
      return arm(connection);
    }
    if (connection.ticket == nullptr && connection.in.empty()) {
      connection.since = came_;
      return read_fresh(connection, data);
    }
    keep(connection, data);
    settle(connection);
  }

  // The client sends no more. What it has sent is answered; then the connection is closed.
  void end(Connection& connection) {
    connection.input_closed = connection.closes = true;
    if (connection.is_long) pass({Passed::kEnd, connection.number});
    settle(connection);
  }

  void throw_away(Connection& connection) {
    const ssize_t size = ::recv(connection.fd, buffer_.get(), kRead, MSG_DONTWAIT | MSG_TRUNC);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) lose(connection, 0);
  }

  // Requests from bytes that were read just now; what is left of them is kept.
  void read_fresh(Connection& connection, std::string_view data) {
    while (!data.empty() && connection.out.empty() && connection.ticket == nullptr) {
      const Reading reading = reader_.read(data, calls_.spare().call);
      if (reading.state == Reading::kOther) return go_long(connection, data, reading.why);
      send_continue(connection, reading);
      if (reading.state == Reading::kPart) {
        if (begin_body(connection, data, reading)) return;
        if (!may_hold(data.size())) return go_long(connection, data, "held");
        connection.need = next_look(data, reading);
        break;
      }
      const std::string_view why = take(connection);
      if (!why.empty()) return go_long(connection, data, why);
      connection.large = reading.size > kLook;
      data.remove_prefix(reading.size);
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
      const Reading reading = reader_.read(data, calls_.spare().call);
      if (reading.state == Reading::kOther) return go_long_kept(connection, reading.why);
      send_continue(connection, reading);
      if (reading.state == Reading::kPart) {
        if (begin_body(connection, data, reading)) return;
        connection.need = next_look(data, reading);
        break;
      }
      const std::string_view why = take(connection);
      if (!why.empty()) return go_long_kept(connection, why);
      hold_less(reading.size);
      connection.in.consume(reading.size);
      connection.need = 0;
      if (connection.closing) return settle(connection);
    }
    if (connection.closes && connection.idle()) return leave(connection);
    if (connection.is_over()) return lose(connection, 0);
    arm_after_reading(connection);
  }

  // How many bytes must be here before it is of use to look again: the beginning of a large request tells much.
  std::size_t next_look(std::string_view data, const Reading& reading) const {
    const bool tells = reading.before > data.size() && reading.size >= reading.before + shared_.limits.straight;
    return tells ? reading.before : reading.size;
  }

  // The rest of a request goes where it belongs, if its beginning says where; false: it is kept as it comes.
  bool begin_body(Connection& connection, std::string_view data, const Reading& reading) {
    connection.large = false;
    if (reading.size < data.size() + shared_.limits.straight || has_all_connections()) return false;
    const std::string_view area(exchange_.memory, exchange_.size);
    const std::size_t before = reader_.preview(data, area, calls_.spare().call);
    if (before == 0) return false;
    auto incoming = std::make_unique<Incoming>();
    const CallTickets::Beginning begun = calls_.begin(connection.since, area, *incoming);
    if (begun == CallTickets::Beginning::kWaits) return false;
    incoming->left = reading.size - before;
    incoming->land(data.substr(before));
    connection.incoming = std::move(incoming);
    forget_kept(connection);
    connection.large = true;
    if (begun == CallTickets::Beginning::kRefused) tell_refusal(connection);
    receive_body(connection);
    return true;
  }

  void receive_body(Connection& connection) {
    Incoming& body = *connection.incoming;
    for (std::size_t got = 0; body.left > 0 && got < kRead;) {
      const ssize_t size = receive_some(connection.fd, body);
      if (size < 0 && errno == EINTR) continue;
      if (size < 0 && errno == EAGAIN) break;
      if (size <= 0) return lose(connection, size < 0 ? errno : 0);
      body.advance(static_cast<std::size_t>(size));
      got += static_cast<std::size_t>(size);
    }
    if (body.left == 0) return end_body(connection);
    arm_after_reading(connection);
  }

  ssize_t receive_some(int fd, const Incoming& body) {
    if (!body.is_refused()) return ::recv(fd, body.next().to, body.next().size, MSG_DONTWAIT);
    return ::recv(fd, buffer_.get(), std::min(body.left, kRead), MSG_DONTWAIT | MSG_TRUNC);  // TCP throws them away
  }

  void end_body(Connection& connection) {
    const std::unique_ptr<Incoming> body = std::move(connection.incoming);
    if (!body->is_refused() && !finish(connection, *body)) tell_refusal(connection);
    settle(connection);
  }

  bool finish(Connection& connection, Incoming& body) {
    const auto& model = static_cast<const ServedModel&>(*body.ticket->call.model);
    const ServedModel* now = served(plain_calls_, model.name);
    return calls_.finish(connection, body, now != nullptr && now->takes_calls_of(model)).taken;
  }

  void forget_kept(Connection& connection) {
    hold_less(connection.in.size());
    connection.in.clear();
    connection.need = 0;
  }

  // Tells a client that waits for it to send the body.
  void send_continue(Connection& connection, const Reading& reading) {
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    if (reading.expects && !connection.was_continued) {
      const ssize_t sent = ::send(connection.fd, kContinue.data(), kContinue.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      connection.out.append(kContinue.substr(static_cast<std::size_t>(std::max<ssize_t>(sent, 0))));
    }
    connection.was_continued = reading.expects && reading.state == Reading::kPart;
  }

  void arm_after_reading(Connection& connection) {
    if (connection.arriving()) sweep_soon();
    arm(connection);
  }

  void keep(Connection& connection, std::string_view data) {
    if (connection.ticket == nullptr && !may_hold(data.size())) {
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

  // Takes the call that was read, or refuses it; else says why it goes the long way.
  std::string_view take(Connection& connection) {
    if (has_all_connections()) return "busy";
    if (calls_.spare().call.has_regions()) calls_.spare().owner = owner_of(connection, calls_.spare().call);
    const CallTickets::Taking taking = calls_.take(connection, connection.since);
    if (taking.taken || !taking.why.empty()) return taking.why;
    tell_refusal(connection);
    return {};
  }

  // Whose regions it may use.
  RegionOwner owner_of(Connection& connection, const protocol::Call& call) const {
    if (!exchange_.regions.tells_users_apart()) return {RegionOwner::kAnyUser, call.key};
    if (!connection.user) connection.user = user_of_peer(connection.fd).value_or(RegionOwner::kUnknown);
    return {*connection.user, call.key};
  }

  // Of the call in `spare`.
  void tell_refusal(Connection& connection) {
    writer_.about(calls_.spare().call);
    refuse(calls_.refusal());
    connection.since = monotonic_ns();
    if (calls_.spare().call.closes) (connection.incoming ? connection.closes : connection.closing) = true;
    connection.input_closed |= connection.closing;
    send_written(connection);
  }

  bool has_all_connections() const {
    return shared_.limits.connections &&
           shared_.connections.load(std::memory_order_relaxed) >= shared_.limits.connections;
  }

  void refuse(const Refusal& refusal) { writer_.refuse(refusal.kind.http, refusal.reason, refusal.retry); }
  void end_round() override { calls_.send(); }

  void answer_all() override {
    const auto answer = [this](const ClientTicket& ticket, const protocol::ReplyLayout* layout) {
      writer_.about(ticket.call);
      if (layout == nullptr || !calls_.deliver(ticket, *layout)) refuse(calls_.refusal());
      else if (!writer_.write(ticket.call, *layout, ticket.call.timed ? stage_line(ticket) : std::string()))
        refuse(calls_.no_text(writer_.no_text()));
      if (ticket.caller != nullptr) send_answer(static_cast<Connection&>(*ticket.caller), ticket.call.closes);
      return monotonic_ns();
    };
    calls_.answer_all(answer, [this](ConnectionNumber, Caller* caller) {
      if (caller == nullptr) return;
      auto& connection = static_cast<Connection&>(*caller);
      connection.since = monotonic_ns();
      settle(connection);
    });
  }

  // How long each stage took, in microseconds: as stage_line in astrarium.server.stage_line.
  static std::string stage_line(const ClientTicket& ticket) {
    const Time times[] = {ticket.received, ticket.admitted, ticket.dispatched,
                          ticket.started,  ticket.finished, monotonic_ns()};
    constexpr std::string_view kBetween[] = {"admit=", ", queue=", ", hand_over=", ", execute=", ", answer="};
    std::string line = "x-astrarium-timeline: ";
    for (std::size_t i = 0; i < std::size(kBetween); ++i)
      line.append(kBetween[i]) += std::to_string((times[i + 1] - times[i]) / 1000);
    return line + ", batch=" + std::to_string(ticket.batch_size) + ", gpu=" + std::to_string(ticket.gpu) + "\r\n";
  }

  void send_answer(Connection& connection, bool closes) {
    send_written(connection);
    if (closes) connection.closing = connection.input_closed = true;
  }

  // Sends what the writer has; what the socket does not take is kept.
  void send_written(Connection& connection) {
    const std::size_t sent = writer_.send(connection.fd);
    if (sent < writer_.size()) writer_.rest(sent, connection.out);
  }

  void go_long_kept(Connection& connection, std::string_view why) {
    const std::string data(connection.in.view());
    forget_kept(connection);
    go_long(connection, data, why);
  }

  void go_long(Connection& connection, std::string_view data, std::string_view why) {
    shared_.long_way.count(why);
    connection.is_long = true;
    connection.was_continued = false;
    connection.need = 0;
    pass_on(connection, data, why);
    if (connection.input_closed) pass({Passed::kEnd, connection.number});
    arm(connection);
  }

  void pass_on(Connection& connection, std::string_view data, std::string_view why) {
    connection.passed += data.size();
    Peer peer = std::exchange(connection.is_known, true) ? Peer() : peer_of(connection.fd);
    if (exchange_.regions.allowed()) peer.user = owner_of(connection, {}).user;
    if (!pass({Passed::kData, connection.number, std::string(data), std::string(why), came_, 0, std::move(peer)}))
      connection.stalled = true;
  }

  bool pass(Passed passed) { return shared_.long_way.push(std::move(passed)); }

  bool sweep_all() override {
    const Time now = began_;
    bool arriving = false;
    connections_.for_each([&](Connection& connection) {
      if (connection.left) {
        arriving = true;
        if (now - connection.since > kLinger) lose(connection, 0);
      } else if (connection.arriving()) {
        if (connection.incoming && calls_.expire(*connection.incoming, now)) {
          tell_refusal(connection);
          arm(connection);
        }
        if (now - connection.since > shared_.limits.request) too_slow(connection);
        else arriving = true;
      } else if (now - connection.since > shared_.limits.keep_alive && is_left_alone(connection)) {
        lose(connection, 0);
      }
    });
    return arriving;
  }

  // Idle, or a client that takes none of its answer. Python times those of the long way itself, until it closes them.
  static bool is_left_alone(const Connection& connection) {
    if (connection.is_long) return connection.closing && !connection.out.empty();
    return connection.ticket == nullptr;
  }

  void too_slow(Connection& connection) {
    if (connection.incoming && connection.incoming->is_refused()) return lose(connection, 0);  // it was refused already
    if (connection.incoming) {
      calls_.abandon(*connection.incoming);
      connection.incoming.reset();
    }
    hold_less(connection.in.size());
    connection.in.clear();
    connection.out.append(shared_.too_slow);
    connection.closing = connection.input_closed = connection.lingers = true;
    send_rest(connection);
  }

  std::shared_ptr<Http1Shared> shared_owner_;
  Http1Shared& shared_;
  CallTickets calls_;
  protocol::PlainCalls plain_calls_;
  RequestReader reader_;
  protocol::AnswerWriter writer_;
  std::unique_ptr<char[]> buffer_ = std::make_unique_for_overwrite<char[]>(kRead);
  ConnectionTable<Connection> connections_;
};

}  // namespace astrarium::front
