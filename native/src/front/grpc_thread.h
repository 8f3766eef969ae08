// A network thread that speaks gRPC: it reads plain calls of ModelInfer, hands them to the scheduler and sends their
// answers. Every other call is passed to Python, which answers it on the same connection.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../express/desk.h"
#include "../express/proto_call.h"
#include "event_thread.h"
#include "grpc_stream.h"
#include "keys.h"

namespace astrarium::front {

// What all threads share.
struct GrpcShared {
  GrpcShared(Exchange& exchange, HttpLimits limits, std::size_t message_bytes, Keys keys)
      : exchange(exchange), limits(limits), message_bytes(message_bytes), keys(std::move(keys)) {}

  Exchange& exchange;
  const HttpLimits limits;
  const std::size_t message_bytes;  // of one message, tensors and all
  const Keys keys;
  LongWayQueue<PassedCall> long_way;
  std::atomic<std::int64_t> connections = 0;
  std::atomic<std::size_t> held = 0;  // bytes of messages that are not whole, and of what waits in Python
};

struct GrpcConnection {
  int fd = -1;  // -1: this place is free
  ConnectionNumber number = 0;
  std::unique_ptr<GrpcHttp2> http2;
  Bytes in;              // part of a frame
  std::size_t sent = 0;  // bytes of http2->out()
  Time since = 0;        // when the client last took something of what waits for it, or nothing waited
  std::size_t moved = 0; // bytes of http2->moved() then
  bool stalled = false;  // because too much waits for Python
  bool marked = false;   // it is looked at when the round ends
  std::uint32_t armed = 0;

  std::size_t unsent() const { return http2->out().size() - sent; }
};

class GrpcThread : public EventThread, private Http2Service<GrpcStream> {
 public:
  GrpcThread(std::shared_ptr<GrpcShared> shared, int number, int listener)
      : EventThread(shared->exchange, number, listener),
        kept_(std::move(shared)),
        shared_(*kept_),
        calls_(exchange_, number),
        desk_(shared_.limits.head_bytes, shared_.limits.body_bytes) {}

  ~GrpcThread() override {
    stop();
    lose_all();
  }

  // What follows is posted.

  void serve(const ServedModel& model) { desk_.serve(std::make_shared<const ServedModel>(model)); }
  void withhold(const std::string& name, const std::string& why) { desk_.withhold(name, why); }

  // Takes no more connections, and closes each one as soon as its client knows and its last call is answered.
  void drain() {
    accept_all();
    stop_listening();
    connections_.each([this](GrpcConnection& connection) {
      if (!connection.http2->greeted()) return lose(connection);
      connection.http2->go_away();
      mark(connection);
    });
  }

  // From Python, about a call that goes the long way.

  void send(ConnectionNumber number, std::uint32_t id, const std::string& message) {
    with(number, id, [&](GrpcHttp2& http2, GrpcStream& stream) {
      if (stream.ends) return;
      if (!stream.has_head) http2.send_head(stream, answer_head(), false);
      http2.send_data(stream, message_prefix(message.size()));
      http2.send_data(stream, message);
    });
  }
  void finish(ConnectionNumber number, std::uint32_t id, int status, const std::string& details,
              const std::vector<std::pair<std::string, std::string>>& trailing) {
    with(number, id, [&](GrpcHttp2& http2, GrpcStream& stream) {
      stream.is_long = false;
      end(http2, stream, status, details, trailing);
    });
  }
  void tell_when_sent(ConnectionNumber number, std::uint32_t id) {
    with(number, id, [&](GrpcHttp2&, GrpcStream& stream) {
      stream.tell_sent = true;
      if (stream.out.empty()) sent(stream);
    });
  }
  // Python has read a message of so many bytes: the client may send more.
  void taken(ConnectionNumber number, std::uint32_t id, std::size_t bytes) {
    with(number, id, [&](GrpcHttp2& http2, GrpcStream& stream) {
      const std::size_t less = std::min(message_cost(bytes), stream.untaken);
      stream.untaken -= less;
      hold_less(less);
      http2.allow_more(stream);
    });
  }
  // Python has taken what waited for it.
  void read_on() {
    connections_.each([this](GrpcConnection& connection) {
      if (std::exchange(connection.stalled, false)) mark(connection);
    });
  }

 private:
  static constexpr std::string_view kService = "/inference.GRPCInferenceService/", kInfer = "/inference.GRPCInferenceService/ModelInfer",
                                    kStreams = "/inference.GRPCInferenceService/ModelStreamInfer";
  static constexpr std::size_t kRead = 1 << 18;         // bytes at once
  static constexpr std::size_t kMostUnsent = 1 << 20;   // bytes: from who takes nothing, nothing is read
  static constexpr std::size_t kMostStreams = 4096;     // at once on a connection
  static constexpr std::size_t kMostKept = 64 << 20;    // bytes of answers that a client's windows keep here
  static constexpr std::int64_t kWindow = 1 << 20;      // bytes of a stream: more than most messages have

  // ---- connections

  void open(int fd) override {
    GrpcConnection& connection = connections_.add(fd, number_);
    const Http2Limits limits{shared_.limits.head_bytes, kMostStreams, kWindow, kMostKept};
    connection.http2 = std::make_unique<GrpcHttp2>(static_cast<Http2Service<GrpcStream>&>(*this), limits);
    connection.since = began_;
    connection.armed = EPOLLIN;
    shared_.connections.fetch_add(1, std::memory_order_relaxed);
    if (!watch(fd, connection.number, EPOLLIN, EPOLL_CTL_ADD)) lose(connection);
    else mark(connection);
  }

  void lose(GrpcConnection& connection) {
    connection.http2->end();
    ::close(connection.fd);
    connections_.remove(connection);
    shared_.connections.fetch_sub(1, std::memory_order_relaxed);
  }
  void lose_all() override {
    connections_.each([this](GrpcConnection& connection) { lose(connection); });
  }
  bool has_connections() const override { return !connections_.empty(); }

  void happened(ConnectionNumber number, std::uint32_t events) override {
    GrpcConnection* connection = connections_.find(number);
    if (connection == nullptr) return;
    if (events & EPOLLOUT) mark(*connection);
    if (connection->armed & EPOLLIN && events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(*connection);
    else if (events & (EPOLLHUP | EPOLLERR)) lose(*connection);
  }

  void receive(GrpcConnection& connection) {
    const std::size_t kept = connection.in.size();  // less than a frame
    std::memcpy(buffer_.get(), connection.in.view().data(), kept);
    const ssize_t size = ::recv(connection.fd, buffer_.get() + kept, kRead, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) return lose(connection);
    const std::string_view data(buffer_.get(), kept + static_cast<std::size_t>(size));
    connection.in.clear();
    if (connection.http2->greeted() && !connection.unsent() && !connection.http2->unsent()) connection.since = began_;
    reads_ = &connection;
    const std::size_t used = connection.http2->receive(data);
    connection.in.append(data.substr(used));
    mark(connection);
  }

  // All that a round has to say to a client leaves in one piece, when the round ends.
  void mark(GrpcConnection& connection) {
    if (!std::exchange(connection.marked, true)) marked_.push_back(connection.number);
  }
  void end_round() override {
    calls_.send();
    settle_marked();
  }
  void settle_marked() {
    for (const ConnectionNumber number : std::exchange(marked_, {}))
      if (GrpcConnection* connection = connections_.find(number)) settle(*connection);
  }

  void settle(GrpcConnection& connection) {
    connection.marked = false;
    if (!flush(connection)) return lose(connection);
    const bool done = connection.unsent() == 0;
    if (done && (connection.http2->broken() || connection.http2->gone())) return lose(connection);
    const bool reads = !connection.stalled && !connection.http2->broken() && connection.unsent() < kMostUnsent;
    const std::uint32_t wanted = (reads ? EPOLLIN : 0u) | (done ? 0u : EPOLLOUT);
    if (wanted == connection.armed) return;
    connection.armed = wanted;
    watch(connection.fd, connection.number, wanted, EPOLL_CTL_MOD);
  }

  // False where the client is no more.
  bool flush(GrpcConnection& connection) {
    std::string& out = connection.http2->out();
    while (connection.sent < out.size()) {
      const ssize_t sent = ::send(connection.fd, out.data() + connection.sent, out.size() - connection.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) break;
      connection.sent += static_cast<std::size_t>(sent);
      note_taken(connection);
    }
    if (connection.sent < out.size() && errno != EAGAIN && errno != EWOULDBLOCK) return false;
    forget_sent(connection, out);
    return true;
  }

  // Whoever keeps its windows closed takes nothing, whatever else it says and hears.
  void note_taken(GrpcConnection& connection) {
    const std::size_t moved = connection.http2->moved();
    if (connection.http2->unsent() && moved == connection.moved) return;
    connection.moved = moved, connection.since = began_;
  }

  static void forget_sent(GrpcConnection& connection, std::string& out) {
    constexpr std::size_t kKept = 1 << 14;  // bytes of memory, for the next time
    if (connection.sent == out.size()) {
      express::trim(out, kKept);
    } else if (connection.sent > out.size() / 2) {
      out.erase(0, connection.sent);
    } else {
      return;
    }
    connection.sent = 0;
  }

  template <class Work>
  void with(ConnectionNumber number, std::uint32_t id, Work work) {
    GrpcConnection* connection = connections_.find(number);
    GrpcStream* stream = connection == nullptr ? nullptr : connection->http2->find(id);
    if (stream == nullptr) return;
    work(*connection->http2, *stream);
    mark(*connection);
  }

  // ---- what comes on a stream

  bool field(GrpcStream& stream, std::string_view name, std::string_view value) override {
    begin(stream);
    if (name.empty() || name.find('\0') != std::string_view::npos || value.find('\0') != std::string_view::npos) return false;
    stream.metadata += name, stream.metadata += '\0';
    const std::size_t at = stream.metadata.size();
    stream.metadata += value, stream.metadata += '\0';
    if (Place* place = known(stream, name)) *place = {at, value.size()};
    return true;
  }

  void begin(GrpcStream& stream) {
    if (stream.connection == nullptr) stream.connection = reads_, stream.received = stream.since = arrived_;
  }

  static Place* known(GrpcStream& stream, std::string_view name) {
    if (name == ":path") return &stream.path;
    if (name == ":method") return &stream.method;
    if (name == "grpc-timeout") return &stream.timeout;
    if (name == "grpc-encoding") return &stream.encoding;
    if (name == "authorization") return &stream.authorization;
    if (name == "x-api-key") return &stream.api_key;
    if (name == "x-astrarium-application") return &stream.application;
    if (name == "x-astrarium-timeline") return &stream.timeline;
    return nullptr;
  }

  void opened(GrpcStream& stream) override {
    begin(stream);
    const std::string_view path = stream.view(stream.path);
    if (stream.view(stream.method) != "POST" || path.empty()) return stream.connection->http2->reset(stream, Http2Error::kProtocol);
    stream.mode = path == kInfer ? GrpcStream::kInfer : path != kStreams && path.substr(0, kService.size()) == kService ? GrpcStream::kUnary : GrpcStream::kStream;
    if (stream.mode == GrpcStream::kStream) return go_long(stream, "stream", {}, false);
    if (has_key(stream)) return;
    stream.has_message = true;  // who shows no key has none kept
    go_long(stream, "key", {}, false);
  }

  bool has_key(const GrpcStream& stream) const { return shared_.keys.admit(stream.view(stream.authorization), stream.view(stream.api_key)); }

  struct Message {
    bool compressed = false;
    std::string_view bytes;
  };

  void data(GrpcStream& stream, std::string_view body) override {
    const std::uint32_t id = stream.id;
    GrpcHttp2& http2 = *stream.connection->http2;
    if (stream.mode == GrpcStream::kStream && stream.in.empty()) stream.since = began_;
    Message found;
    while (!stream.has_message && gather(stream, body, found)) {
      message(stream, found);
      if (stream.id != id) return;
      hold_less(stream.in.size());
      stream.in.clear();
    }
    if (stream.id == id && stream.untaken < kWindow) http2.allow_more(stream);
  }

  // Whether a message is whole; it lies in *body*, or with the stream.
  bool gather(GrpcStream& stream, std::string_view& body, Message& found) {
    constexpr std::size_t kPrefix = express::ProtoAnswerWriter::kPrefix;
    if (body.empty()) return false;
    if (stream.in.empty() && body.size() >= kPrefix && body.size() - kPrefix >= read_number(body, 1, 4)) {
      const std::size_t size = read_number(body, 1, 4);
      found = {body[0] != 0, body.substr(kPrefix, size)};
      body.remove_prefix(kPrefix + size);
      return is_small(stream, size);
    }
    if (!fill(stream, body, kPrefix)) return false;
    const std::size_t size = read_number(stream.in.view(), 1, 4);
    if (!is_small(stream, size) || !fill(stream, body, kPrefix + size)) return false;
    found = {stream.in.view()[0] != 0, stream.in.view().substr(kPrefix)};
    return true;
  }

  // Keeps bytes of a message until it has so many.
  bool fill(GrpcStream& stream, std::string_view& body, std::size_t size) {
    const std::size_t more = std::min(size - std::min(size, stream.in.size()), body.size());
    if (!hold(more)) {
      body = {};
      refuse_to_hold(stream);
      return false;
    }
    stream.in.append(body.substr(0, more));
    body.remove_prefix(more);
    return stream.in.size() >= size;
  }

  // False where nothing more can be held.
  bool hold(std::size_t more) {
    if (more && shared_.held.load(std::memory_order_relaxed) + more > shared_.limits.held_bytes) return false;
    shared_.held.fetch_add(more, std::memory_order_relaxed);
    return true;
  }
  void hold_less(std::size_t less) {
    if (less) shared_.held.fetch_sub(less, std::memory_order_relaxed);
  }
  void refuse_to_hold(GrpcStream& stream) {
    refuse(stream, kExhausted, "overloaded: calls that are not whole hold all memory that there is for them");
  }

  bool is_small(GrpcStream& stream, std::size_t size) {
    if (size <= shared_.message_bytes) return true;
    const std::string told = "SERVER: Received message larger than max (" + std::to_string(size) + " vs. " + std::to_string(shared_.message_bytes) + ")";
    refuse(stream, kExhausted, told);
    return false;
  }

  void message(GrpcStream& stream, const Message& message) {
    if (stream.mode == GrpcStream::kStream) return next_message(stream, message);
    stream.has_message = true;
    if (stream.mode == GrpcStream::kUnary) return go_long(stream, "method", message.bytes, message.compressed);
    const std::string_view why = message.compressed ? "compressed" : take(stream, message.bytes);
    if (!why.empty()) go_long(stream, why, message.bytes, message.compressed);
  }

  void next_message(GrpcStream& stream, const Message& message) {
    const std::size_t cost = message_cost(message.bytes.size());
    if (!hold(cost)) return refuse_to_hold(stream);
    stream.untaken += cost;
    pass(stream, {PassedCall::kMessage, stream.connection->number, stream.id, std::string(message.bytes), message.compressed});
  }

  void ended(GrpcStream& stream) override {
    if (stream.mode == GrpcStream::kStream) return pass(stream, {PassedCall::kEnd, stream.connection->number, stream.id});
    if (!stream.has_message) refuse(stream, kInternal, "expected a message, and none came");
  }

  void closed(GrpcStream& stream) override {
    hold_less(stream.in.size() + stream.untaken);
    if (stream.connection == nullptr) return;
    if (stream.pending != nullptr) ++stream.connection->http2->abandoned;
    CallDesk::leave(stream);
    if (stream.is_long) pass(stream, {PassedCall::kLeft, stream.connection->number, stream.id});
  }

  void sent(GrpcStream& stream) override {
    if (std::exchange(stream.tell_sent, false)) pass(stream, {PassedCall::kSent, stream.connection->number, stream.id});
  }

  // ---- plain calls

  // Takes a call or refuses it; else says why it goes the long way.
  std::string_view take(GrpcStream& stream, std::string_view message) {
    std::string_view why;
    const auto* model = desk_.find(express::ProtoCallReader::model_name(message), why);
    if (model == nullptr) return why;
    express::Call& call = calls_.spare().call;
    call.clear();
    call.model = *model;
    why = why_long(stream, call);
    if (!why.empty()) return why;
    if (!reader_.read(call, message, shared_.limits.body_bytes)) return reader_.why();
    const CallDesk::Taking taking = calls_.take(stream, stream.received, stream.connection->number);
    if (taking.taken || !taking.why.empty()) return taking.why;
    refuse(stream, calls_.refusal());
    return {};
  }

  // What the metadata asks for.
  std::string_view why_long(const GrpcStream& stream, express::Call& call) const {
    if (stream.timeline.size && stream.view(stream.timeline) != "0") return "x-astrarium-timeline";
    call.application = stream.view(stream.application);
    if (call.application.size() > express::kLongestTag) return "x-astrarium-application";
    call.patience = timeout_of(stream.view(stream.timeout));
    return stream.timeout.size && !call.patience ? "grpc-timeout" : "";
  }

  void answer_all() override {
    const auto answer = [this](const Pending& pending, const express::Rooms* rooms) {
      if (pending.asker == nullptr) return monotonic_ns();
      auto& stream = static_cast<GrpcStream&>(*pending.asker);
      mark(*stream.connection);
      if (rooms == nullptr) refuse(stream, calls_.refusal());
      else write(*stream.connection->http2, stream, pending.call, *rooms);
      return monotonic_ns();
    };
    calls_.answer_all(answer, [this](ConnectionNumber number, const Asker* asker) {
      GrpcConnection* connection = asker == nullptr ? connections_.find(number) : nullptr;
      if (connection != nullptr) --connection->http2->abandoned;
    });
    settle_marked();  // before anything new is read
  }

  void write(GrpcHttp2& http2, GrpcStream& stream, const express::Call& call, const express::Rooms& rooms) {
    constexpr std::size_t kSmall = 1 << 16;  // bytes: one frame rather than one for each piece
    const auto& pieces = writer_.write(call, rooms);
    http2.send_head(stream, answer_head(), false);
    if (writer_.size() <= kSmall) {
      joined_.clear();
      for (const std::string_view piece : pieces) joined_ += piece;
      http2.send_data(stream, joined_);
    } else {
      for (const std::string_view piece : pieces) http2.send_data(stream, piece);
    }
    end(http2, stream, 0, {}, {});
  }

  // ---- the end of a call

  static constexpr int kExhausted = 8, kInternal = 13;  // statuses

  void refuse(GrpcStream& stream, const Refusal& refusal) {
    const std::vector<std::pair<std::string, std::string>> wait = {{"grpc-retry-pushback-ms", "1000"}, {"retry-after", "1"}};
    end(*stream.connection->http2, stream, refusal.kind.grpc, refusal.reason, refusal.retry ? wait : decltype(wait)());
  }
  void refuse(GrpcStream& stream, int status, std::string_view details) { end(*stream.connection->http2, stream, status, details, {}); }

  // The stream is no more after this, or as soon as the client has taken what was sent before.
  void end(GrpcHttp2& http2, GrpcStream& stream, int status, std::string_view details,
           const std::vector<std::pair<std::string, std::string>>& trailing) {
    if (stream.ends) return;
    const bool alone = !stream.has_head;
    std::string& block = block_;
    block = alone ? std::string_view(answer_head()) : std::string_view();
    append_status(block, status, details);
    for (const auto& [name, value] : trailing) append_field(block, name, value);
    if (alone) http2.send_head(stream, block, true);
    else http2.send_trailers(stream, block);
  }

  // ---- the long way

  void go_long(GrpcStream& stream, std::string_view why, std::string_view message, bool compressed) {
    const bool streams = stream.mode == GrpcStream::kStream;
    if (stream.mode == GrpcStream::kInfer) shared_.long_way.counted(why);
    if (!hold(call_cost(stream.metadata.size()))) return refuse_to_hold(stream);
    stream.is_long = true;
    pass(stream, {PassedCall::kCall, stream.connection->number, stream.id, std::string(message), compressed, streams, stream.metadata,
                  peer(stream.connection->fd), std::string(why), stream.received, timeout_of(stream.view(stream.timeout))});
  }

  void pass(GrpcStream& stream, PassedCall passed) {
    if (!shared_.long_way.push(std::move(passed))) stream.connection->stalled = true;
  }

  // As gRPC writes addresses.
  static std::string peer(int fd) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    char text[INET6_ADDRSTRLEN] = {};
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "unknown";
    if (address.ss_family == AF_INET) {
      const auto& four = reinterpret_cast<const sockaddr_in&>(address);
      ::inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
      return "ipv4:" + std::string(text) + ":" + std::to_string(ntohs(four.sin_port));
    }
    if (address.ss_family != AF_INET6) return "unknown";
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof text);
    return "ipv6:%5B" + std::string(text) + "%5D:" + std::to_string(ntohs(six.sin6_port));
  }

  // ---- time

  // Closes who has never said hello or takes nothing of what waits for it, and ends calls that stopped arriving.
  bool sweep_all() override {
    connections_.each([this](GrpcConnection& connection) {
      GrpcHttp2& http2 = *connection.http2;
      const Time quiet = began_ - connection.since;
      const bool waits = connection.unsent() || http2.unsent();
      if (quiet > (http2.greeted() ? shared_.limits.keep_alive : shared_.limits.request) && (waits || !http2.greeted())) return lose(connection);
      http2.each([&](GrpcStream& stream) {
        const bool arrives = stream.mode == GrpcStream::kStream ? !stream.in.empty() : !stream.has_message;
        if (arrives && began_ - stream.since > shared_.limits.request) too_slow(stream);
      });
    });
    return false;
  }

  void too_slow(GrpcStream& stream) {
    constexpr int kDeadline = 4;
    mark(*stream.connection);
    refuse(stream, kDeadline, "request: expected each message whole within " + rounded_duration(shared_.limits.request));
  }

  std::shared_ptr<GrpcShared> kept_;
  GrpcShared& shared_;
  CallDesk calls_;
  express::Desk desk_;
  express::ProtoCallReader reader_;
  express::ProtoAnswerWriter writer_;
  std::unique_ptr<char[]> buffer_ = std::make_unique_for_overwrite<char[]>(kRead + kFrameHead + kSmallestFrame);
  std::string joined_, block_;
  GrpcConnection* reads_ = nullptr;  // the connection that is being read
  Connections<GrpcConnection> connections_;
  std::vector<ConnectionNumber> marked_;
};

}  // namespace astrarium::front
