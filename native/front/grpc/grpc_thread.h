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
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/memory_return.h"
#include "front/connection_table.h"
#include "front/event_thread.h"
#include "front/grpc/stream.h"
#include "front/http_limits.h"
#include "front/keys.h"
#include "front/peer.h"
#include "front/reasons.h"
#include "protocol/plain_calls.h"
#include "protocol/proto_call.h"

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
  Reasons left;  // connections that we closed, by reason
  std::atomic<std::int64_t> connections = 0;
  std::atomic<std::int64_t> long_calls = 0;  // that Python has, or that wait for it
  // Bytes of messages that are not whole, of what waits in Python, and of answers that nobody takes.
  std::atomic<std::size_t> held = 0;
  // Bytes of open streams and their metadata, and of frames and heads that are not whole.
  std::atomic<std::size_t> heads = 0;

  // Python has nothing of a call any more.
  void forget_call(std::size_t metadata) {
    held.fetch_sub(call_cost(metadata), std::memory_order_relaxed);
    long_calls.fetch_sub(1, std::memory_order_relaxed);
  }
};

struct GrpcConnection {
  int fd = -1;  // -1: this place is free
  ConnectionNumber number = 0;
  std::unique_ptr<GrpcHttp2> http2;
  ByteQueue in;                          // part of a frame
  std::size_t sent = 0;                  // bytes of http2->out()
  Time since = 0;                        // when the client last took something of what waits for it, or nothing waited
  std::size_t moved = 0;                 // bytes of http2->moved() then
  std::size_t heads = 0;                 // bytes of its open streams and their metadata
  std::size_t partial = 0;               // bytes of a frame and a head that are not whole
  std::size_t waiting = 0;               // bytes of answers that wait for it, as they are counted
  Time frame_since = 0, head_since = 0;  // when that frame and that head began to arrive; 0: there is none
  Time left = 0;                         // when our last frame went out; what it still sends is ignored
  bool stalled = false;                  // because too much waits for Python
  std::optional<std::int64_t> user;      // whose client it is, once somebody has asked
  bool marked = false;                   // it is looked at when the round ends
  bool counted = false;                  // the reason for which we close it
  std::uint32_t armed = 0;

  std::size_t unsent() const { return http2->out().size() - sent; }
};

class GrpcThread : public EventThread, private Http2Service<GrpcStream> {
 public:
  GrpcThread(std::shared_ptr<GrpcShared> shared, int number, int listener)
      : EventThread(shared->exchange, number, listener),
        shared_owner_(std::move(shared)),
        shared_(*shared_owner_),
        calls_(exchange_, number, came_,
               [this](auto all) { post([this, all = std::move(all)] { take_tokens(all); }); }),
        plain_calls_(shared_.limits.head_bytes, shared_.limits.body_bytes) {}

  ~GrpcThread() override {
    stop();
    lose_all();
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

  // Takes no more connections, and closes each one as soon as its client knows and its last call is answered.
  void drain() {
    accept_all();
    stop_listening();
    connections_.for_each([this](GrpcConnection& connection) {
      if (!connection.http2->greeted() || connection.left) return lose(connection);
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
    connections_.for_each([this](GrpcConnection& connection) {
      if (!std::exchange(connection.stalled, false)) return;
      connection.http2->paused = false;
      process(connection, unread(connection));
    });
  }

 private:
  static constexpr std::string_view kService = "/inference.GRPCInferenceService/",
                                    kInfer = "/inference.GRPCInferenceService/ModelInfer",
                                    kStreams = "/inference.GRPCInferenceService/ModelStreamInfer";
  static constexpr std::size_t kRead = 1 << 18;                 // bytes at once
  static constexpr std::size_t kMostUnsent = 1 << 20;           // bytes: from who takes nothing, nothing is read
  static constexpr std::size_t kMostStreams = 1024;             // at once on a connection
  static constexpr std::size_t kMostResets = 2 * kMostStreams;  // soon after each other: all calls, twice
  static constexpr std::size_t kForgiven = 100;                 // resets a second, besides one for each answer
  static constexpr Time kPatient = 50 * kMillisecond;           // who waits so long for an answer may give up on it
  static constexpr std::size_t kMostKept = 64 << 20;            // bytes of answers that a client's windows keep here
  static constexpr std::int64_t kWindow = 1 << 20;              // bytes of a stream: more than most messages have
  // Bytes of streams, metadata and unfinished frames, of all connections.
  static constexpr std::size_t kMostHeads = 256 << 20;
  static constexpr std::size_t kHeadsOfEach = 4 << 20;  // and of one: 4 KiB for each stream that it may open
  static constexpr std::size_t kReported = 1 << 16;     // bytes of which other threads need not know
  static constexpr std::int64_t kMostLong = 1 << 14;    // calls in Python at once, which cost about 10 KiB each
  static constexpr Time kLinger = 1000 * kMillisecond;  // for a client to hear why it is left

  void open(int fd) override {
    GrpcConnection& connection = connections_.add(fd, number_);
    const Http2Limits limits{shared_.limits.head_bytes, kMostStreams, kMostResets, kWindow, kMostKept};
    connection.http2 = std::make_unique<GrpcHttp2>(static_cast<Http2Service<GrpcStream>&>(*this), limits);
    connection.since = began_;
    connection.armed = EPOLLIN;
    shared_.connections.fetch_add(1, std::memory_order_relaxed);
    if (!watch(fd, connection.number, EPOLLIN, EPOLL_CTL_ADD)) lose(connection);
    else mark(connection);
  }

  void lose(GrpcConnection& connection, std::string_view why) {
    count_reason(connection, why);
    lose(connection);
  }
  void lose(GrpcConnection& connection) {
    connection.http2->end();
    count_partial(connection, 0);
    count_waiting(connection, 0);
    ::close(connection.fd);
    connections_.remove(connection);
    shared_.connections.fetch_sub(1, std::memory_order_relaxed);
    report_heads();
  }
  void lose_all() override {
    connections_.for_each([this](GrpcConnection& connection) { lose(connection); });
  }
  bool has_connections() const override { return !connections_.empty() || memory_.had_much(); }

  void happened(ConnectionNumber number, std::uint32_t events) override {
    GrpcConnection* connection = connections_.find(number);
    if (connection == nullptr) return;
    if (events & EPOLLOUT) mark(*connection);
    if (connection->armed & EPOLLIN && events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(*connection);
    else if (events & (EPOLLHUP | EPOLLERR)) lose(*connection);
  }

  void receive(GrpcConnection& connection) {
    const std::size_t kept = unread(connection).size();  // less than a frame
    const ssize_t size = receive_bytes(connection.fd, buffer_.get() + kept, kRead);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) return lose(connection);
    if (connection.left) return;
    if (connection.http2->greeted() && !connection.unsent() && !connection.http2->unsent()) connection.since = began_;
    process(connection, {buffer_.get(), kept + static_cast<std::size_t>(size)});
  }

  // What was received and not taken, in the buffer.
  std::string_view unread(GrpcConnection& connection) {
    const std::string_view kept = connection.in.view();
    std::memcpy(buffer_.get(), kept.data(), kept.size());
    return {buffer_.get(), kept.size()};
  }

  void process(GrpcConnection& connection, std::string_view data) {
    connection.in.clear();
    reads_ = &connection;
    const std::size_t used = connection.http2->receive(data);
    connection.in.append(data.substr(used));
    time_parts(connection, used > 0);
    count_partial(connection, connection.in.size() + connection.http2->head_bytes());
    if (connection.partial > kFrameHead && is_crowded())
      connection.http2->break_off(Http2Error::kCalm, "memory", "too much memory is held");
    mark(connection);
  }

  // Whether a frame, or a head in many, is under way, and since when.
  void time_parts(GrpcConnection& connection, bool progress) {
    if (connection.in.empty()) connection.frame_since = 0;
    else if (progress || !connection.frame_since) connection.frame_since = began_;
    if (!connection.http2->in_head()) connection.head_since = 0;
    else if (!connection.head_since) connection.head_since = began_;
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

  // The first reason counts, before the client hears it and whether or not it ever does.
  void count_reason(GrpcConnection& connection, std::string_view why) {
    if (!std::exchange(connection.counted, true)) shared_.left.count(why);
  }

  void settle(GrpcConnection& connection) {
    connection.marked = false;
    if (connection.http2->broken()) count_reason(connection, connection.http2->reason());
    if (!flush(connection)) return lose(connection);
    const bool done = connection.unsent() == 0, broken = connection.http2->broken();
    if (done && connection.http2->gone()) return lose(connection);
    if (done && broken && !connection.left) leave(connection);
    count_waiting(connection, connection.http2->unsent() + connection.unsent());
    if (!broken && connection.http2->broken()) return settle(connection);
    const bool reads = connection.left || (!connection.stalled && !broken && connection.unsent() < kMostUnsent);
    const std::uint32_t wanted = (reads ? EPOLLIN : 0u) | (done ? 0u : EPOLLOUT);
    if (wanted == connection.armed) return;
    connection.armed = wanted;
    watch(connection.fd, connection.number, wanted, EPOLL_CTL_MOD);
  }

  // Frees all that it has. The socket stays for a moment: closed with something unread, it would take back what we sent
  // last.
  void leave(GrpcConnection& connection) {
    connection.http2->end();
    connection.in.clear();
    count_partial(connection, 0);
    ::shutdown(connection.fd, SHUT_WR);
    connection.left = began_;
    sweep_soon();
  }

  // False where the client is no more.
  bool flush(GrpcConnection& connection) {
    std::string& out = connection.http2->out();
    while (connection.sent < out.size()) {
      const ssize_t sent = ::send(connection.fd, out.data() + connection.sent, out.size() - connection.sent,
                                  MSG_DONTWAIT | MSG_NOSIGNAL);
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
    connection.moved = moved;
    connection.since = began_;
  }

  static void forget_sent(GrpcConnection& connection, std::string& out) {
    constexpr std::size_t kKept = 1 << 14;  // bytes of memory, for the next time
    if (connection.sent == out.size()) {
      protocol::trim(out, kKept);
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

  // Open streams, their metadata and unfinished frames. Other threads learn of it when it is worth that.
  void count_heads(std::size_t more, std::size_t less) {
    heads_ += more;
    heads_ -= less;
    memory_.note(heads_);
    if (heads_ > reported_ + kReported || heads_ + kReported < reported_) report_heads();
  }
  void report_heads() {
    shared_.heads.fetch_add(heads_ - reported_, std::memory_order_relaxed);  // or less: it wraps around
    reported_ = heads_;
  }
  bool is_crowded() const { return shared_.heads.load(std::memory_order_relaxed) + heads_ - reported_ > kMostHeads; }

  void count_partial(GrpcConnection& connection, std::size_t bytes) {
    if (bytes != connection.partial) count_heads(bytes, std::exchange(connection.partial, bytes));
  }

  // Answers that wait for the client. Where all memory is held, those go who let most of it wait.
  void count_waiting(GrpcConnection& connection, std::size_t bytes) {
    if (bytes == connection.waiting) return;
    const std::size_t held =
        shared_.held.fetch_add(bytes - connection.waiting, std::memory_order_relaxed) + bytes - connection.waiting;
    connection.waiting = bytes;
    memory_.note(held);
    if (held > shared_.limits.held_bytes && bytes > kMostUnsent)
      connection.http2->break_off(Http2Error::kCalm, "memory", "too many answers wait to be taken");
  }

  // Of the metadata only what somebody reads is kept.
  void field(GrpcStream& stream, std::string_view name, std::string_view value) override {
    begin(stream);
    if (name == ":method") {
      stream.is_post = value == "POST";
      return;
    }
    if (name == "content-type") {
      stream.is_grpc = is_grpc_type(value);
      return;
    }
    Place* place = place_of(stream, name);
    if (place == nullptr) return;
    stream.metadata += name;
    stream.metadata += '\0';
    *place = {stream.metadata.size(), value.size()};
    stream.metadata += value;
    stream.metadata += '\0';
  }

  void begin(GrpcStream& stream) {
    if (stream.connection == nullptr) {
      stream.connection = reads_;
      stream.received = stream.since = came_;
    }
  }

  Place* place_of(GrpcStream& stream, std::string_view name) const {
    switch (name.size()) {
      case 5: return name == ":path" ? &stream.path : nullptr;
      case 9: return name == "x-api-key" && shared_.keys ? &stream.api_key : nullptr;
      case 12: return name == "grpc-timeout" ? &stream.timeout : nullptr;
      case 13:
        return name == "grpc-encoding"                   ? &stream.encoding
               : name == "authorization" && shared_.keys ? &stream.authorization
                                                         : nullptr;
      case 20: return name == "x-astrarium-timeline" ? &stream.timeline : nullptr;
      case 23: return name == "x-astrarium-application" ? &stream.application : nullptr;
      default: return nullptr;
    }
  }

  void opened(GrpcStream& stream) override {
    begin(stream);
    if (!count_stream(stream) || !is_call(stream)) return;
    const std::string_view path = stream.view(stream.path);
    stream.mode = path == kInfer                                                    ? GrpcStream::kInfer
                  : path != kStreams && path.substr(0, kService.size()) == kService ? GrpcStream::kUnary
                                                                                    : GrpcStream::kStream;
    if (!has_key(stream) && !is_open_method(path)) return refuse(stream, kUnauthenticated, kNoKey);
    if (stream.mode == GrpcStream::kStream) go_long(stream, "stream", {}, false);
  }

  // False where it was refused, or its connection is left.
  bool count_stream(GrpcStream& stream) {
    constexpr std::size_t kBeside = 96;  // bytes of where streams are found by their number, about
    GrpcConnection& connection = *stream.connection;
    stream.cost = sizeof stream + kBeside + stream.metadata.size();
    connection.heads += stream.cost;
    count_heads(stream.cost, 0);
    if (connection.heads > kHeadsOfEach) {
      connection.http2->break_off(Http2Error::kCalm, "metadata", "the open calls have too much metadata");
      return false;
    }
    if (is_crowded()) return refuse_to_hold(stream), false;
    return true;
  }

  // Whether it is a call at all; else it was refused.
  bool is_call(GrpcStream& stream) {
    if (stream.head_bytes > shared_.limits.head_bytes) {
      const std::string limit = std::to_string(shared_.limits.head_bytes), size = std::to_string(stream.head_bytes);
      return refuse_head(stream, "431", kExhausted,
                         "metadata: expected at most " + limit + " bytes with 32 for each field (got " + size + ")"),
             false;
    }
    if (!stream.is_post) return refuse_head(stream, "405", kInternal, ":method: expected POST"), false;
    if (!stream.is_grpc) return refuse_head(stream, "415", kInternal, "content-type: expected application/grpc"), false;
    if (!stream.timeout.size || timeout_of(stream.view(stream.timeout))) return true;
    const std::string timeout(stream.view(stream.timeout).substr(0, 32));
    refuse(stream, kInvalid,
           "grpc-timeout: expected 1 to 8 digits and one of H, M, S, m, u, n (got '" + timeout + "')");
    return false;
  }

  bool has_key(const GrpcStream& stream) const {
    return shared_.keys.admit(stream.view(stream.authorization), stream.view(stream.api_key));
  }
  // As OPEN_METHODS in astrarium.server.grpc.front.
  static bool is_open_method(std::string_view path) {
    return path.substr(0, kService.size()) == kService &&
           (path.substr(kService.size()) == "ServerLive" || path.substr(kService.size()) == "ServerReady");
  }

  struct Message {
    bool compressed = false;
    std::string_view bytes;
  };

  void data(GrpcStream& stream, std::string_view body) override {
    const std::uint32_t id = stream.id;
    GrpcHttp2& http2 = *stream.connection->http2;
    if (stream.mode == GrpcStream::kStream && stream.in.empty()) stream.since = began_;
    Message complete;
    while (!body.empty() && gather(stream, body, complete)) {
      if (!may_have(stream, body)) return;
      message(stream, complete);
      if (stream.id != id) return;
      hold_less(stream.in.size());
      stream.in.clear();
    }
    if (stream.id == id && stream.untaken < kWindow) http2.allow_more(stream);
  }

  // Whether a message may come, with *more* after it; else the call was refused.
  bool may_have(GrpcStream& stream, std::string_view more) {
    if (stream.mode == GrpcStream::kStream || (!stream.has_message && more.empty())) return true;
    refuse(stream, kUnimplemented, "expected one message, and more came");
    return false;
  }

  // Whether a message is whole; it lies in *body*, or with the stream.
  bool gather(GrpcStream& stream, std::string_view& body, Message& complete) {
    constexpr std::size_t kPrefix = protocol::ProtoAnswerWriter::kPrefix;
    if (body.empty()) return false;
    if (stream.has_message) return may_have(stream, body);
    if (!has_known_flag(stream, body)) return false;
    if (stream.in.empty() && body.size() >= kPrefix && body.size() - kPrefix >= read_number(body, 1, 4)) {
      const std::size_t size = read_number(body, 1, 4);
      complete = {body[0] != 0, body.substr(kPrefix, size)};
      body.remove_prefix(kPrefix + size);
      return is_small(stream, size);
    }
    if (!fill(stream, body, kPrefix)) return false;
    const std::size_t size = read_number(stream.in.view(), 1, 4);
    if (!is_small(stream, size) || !fill(stream, body, kPrefix + size)) return false;
    complete = {stream.in.view()[0] != 0, stream.in.view().substr(kPrefix)};
    return true;
  }

  // A message begins with whether it is compressed.
  bool has_known_flag(GrpcStream& stream, std::string_view body) {
    if (!stream.in.empty() || (body[0] & ~1) == 0) return true;
    refuse(stream, kInternal,
           "a message begins with 0 or 1 (got " + std::to_string(static_cast<unsigned char>(body[0])) + ")");
    return false;
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
    const std::size_t held = shared_.held.load(std::memory_order_relaxed) + more;
    if (more && held > shared_.limits.held_bytes) return false;
    shared_.held.fetch_add(more, std::memory_order_relaxed);
    memory_.note(held);
    return true;
  }
  void hold_less(std::size_t less) {
    if (less) shared_.held.fetch_sub(less, std::memory_order_relaxed);
  }
  void refuse_to_hold(GrpcStream& stream) {
    GrpcHttp2& http2 = *stream.connection->http2;
    refuse(stream, kExhausted, "overloaded: calls that are not whole hold all memory that there is for them");
    http2.charge();
  }

  bool is_small(GrpcStream& stream, std::size_t size) {
    if (size <= shared_.message_bytes) return true;
    const std::string details = "SERVER: Received message larger than max (" + std::to_string(size) + " vs. " +
                                std::to_string(shared_.message_bytes) + ")";
    refuse(stream, kExhausted, details);
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
    pass(stream,
         {PassedCall::kMessage, stream.connection->number, stream.id, std::string(message.bytes), message.compressed});
  }

  void ended(GrpcStream& stream) override {
    if (!stream.in.empty()) return refuse(stream, kInternal, "the last message is not whole");
    if (stream.mode == GrpcStream::kStream)
      return pass(stream, {PassedCall::kEnd, stream.connection->number, stream.id});
    if (!stream.has_message) refuse(stream, kUnimplemented, "expected a message, and none came");
  }

  void closed(GrpcStream& stream) override {
    hold_less(stream.in.size() + stream.untaken);
    if (stream.connection == nullptr) return;
    stream.connection->heads -= stream.cost;
    count_heads(0, stream.cost);
    if (stream.ticket != nullptr) ++stream.connection->http2->abandoned;
    CallTickets::leave(stream);
    if (stream.is_long) leave_long(stream);
  }

  // Python need not begin with what nobody waits for.
  void leave_long(GrpcStream& stream) {
    if (shared_.long_way.withdraw(stream.passed)) return shared_.forget_call(stream.metadata.size());
    pass(stream, {PassedCall::kLeft, stream.connection->number, stream.id});
  }

  bool has_waited(const GrpcStream& stream) override { return began_ - stream.received >= kPatient; }

  void sent(GrpcStream& stream) override {
    if (std::exchange(stream.tell_sent, false)) pass(stream, {PassedCall::kSent, stream.connection->number, stream.id});
  }

  // Takes a call or refuses it; else says why it goes the long way.
  std::string_view take(GrpcStream& stream, std::string_view message) {
    std::string_view why;
    const auto* model = plain_calls_.find(protocol::ProtoCallReader::model_name(message), why);
    if (model == nullptr) return why;
    protocol::Call& call = calls_.spare().call;
    call.clear();
    call.model = *model;
    why = why_long(stream, call);
    if (!why.empty()) return why;
    if (!reader_.read(call, message, shared_.limits.body_bytes)) return reader_.why();
    if (call.has_regions()) calls_.spare().owner = {user_of(*stream.connection), key_of(stream)};
    const CallTickets::Taking taking = calls_.take(stream, stream.received, stream.connection->number);
    if (taking.taken || !taking.why.empty()) return taking.why;
    refuse(stream, calls_.refusal());
    return {};
  }

  // Whose regions a call may use.
  std::int64_t user_of(GrpcConnection& connection) const {
    if (!exchange_.regions.tells_users_apart()) return RegionOwner::kAnyUser;
    if (!connection.user) connection.user = user_of_peer(connection.fd).value_or(RegionOwner::kUnknown);
    return *connection.user;
  }
  std::int64_t key_of(const GrpcStream& stream) const {
    return shared_.keys.find(stream.view(stream.authorization), stream.view(stream.api_key)).value_or(Keys::kNone);
  }

  // What the metadata asks for.
  std::string_view why_long(const GrpcStream& stream, protocol::Call& call) const {
    if (stream.timeline.size && stream.view(stream.timeline) != "0") return "x-astrarium-timeline";
    call.application = stream.view(stream.application);
    if (call.application.size() > protocol::kLongestTag) return "x-astrarium-application";
    call.patience = timeout_of(stream.view(stream.timeout)).value_or(0);
    return {};
  }

  void answer_all() override {
    const auto answer = [this](const ClientTicket& ticket, const protocol::ReplyLayout* layout) {
      if (ticket.caller == nullptr) return monotonic_ns();
      auto& stream = static_cast<GrpcStream&>(*ticket.caller);
      mark(*stream.connection);
      if (layout == nullptr || !calls_.deliver(ticket, *layout)) refuse(stream, calls_.refusal());
      else write(*stream.connection->http2, stream, ticket.call, *layout);
      return monotonic_ns();
    };
    calls_.answer_all(answer, [this](ConnectionNumber number, const Caller* caller) {
      GrpcConnection* connection = caller == nullptr ? connections_.find(number) : nullptr;
      if (connection != nullptr) --connection->http2->abandoned;
    });
    settle_marked();  // before anything new is read
  }

  void write(GrpcHttp2& http2, GrpcStream& stream, const protocol::Call& call, const protocol::ReplyLayout& layout) {
    constexpr std::size_t kSmall = 1 << 16;  // bytes: one frame rather than one for each piece
    const auto& pieces = writer_.write(call, layout);
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

  static constexpr int kInvalid = 3, kDeadline = 4, kExhausted = 8, kUnimplemented = 12, kInternal = 13,
                       kUnauthenticated = 16;  // statuses
  // As Keys in astrarium.server.protocol.keys.
  static constexpr std::string_view kNoKey =
      "API key: expected 'Authorization: Bearer KEY' or 'x-api-key: KEY' with a key that this server knows";

  void refuse(GrpcStream& stream, const Refusal& refusal) {
    const std::vector<std::pair<std::string, std::string>> wait = {{"grpc-retry-pushback-ms", "1000"},
                                                                   {"retry-after", "1"}};
    end(*stream.connection->http2, stream, refusal.kind.grpc, refusal.reason, refusal.retry ? wait : decltype(wait)());
  }
  void refuse(GrpcStream& stream, int status, std::string_view details) {
    end(*stream.connection->http2, stream, status, details, {});
  }

  // The request is no call: clients of HTTP are told so, too.
  void refuse_head(GrpcStream& stream, std::string_view http_status, int status, std::string_view details) {
    block_ = refusal_head(http_status);
    append_status(block_, status, details);
    stream.connection->http2->send_head(stream, block_, true);
  }

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

  void go_long(GrpcStream& stream, std::string_view why, std::string_view message, bool compressed) {
    const bool streams = stream.mode == GrpcStream::kStream;
    if (stream.mode == GrpcStream::kInfer) shared_.long_way.count(why);
    if (shared_.long_calls.load(std::memory_order_relaxed) >= kMostLong || !hold(call_cost(stream.metadata.size())))
      return refuse_to_hold(stream);
    shared_.long_calls.fetch_add(1, std::memory_order_relaxed);
    stream.is_long = true;
    const std::int64_t user =
        exchange_.regions.allowed() ? user_of(*stream.connection) : std::int64_t{RegionOwner::kUnknown};
    pass(stream, {PassedCall::kCall, stream.connection->number, stream.id, std::string(message), compressed, streams,
                  stream.metadata, peer(stream.connection->fd), std::string(why), stream.received,
                  timeout_of(stream.view(stream.timeout)).value_or(0), user});
  }

  // Whose calls wait for Python is not read before it has taken some of them.
  void pass(GrpcStream& stream, PassedCall passed) {
    const bool is_call = passed.kind == PassedCall::kCall;
    if (shared_.long_way.push(std::move(passed), is_call ? &stream.passed : nullptr)) return;
    stream.connection->stalled = stream.connection->http2->paused = true;
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

  // Closes who has never said hello, stops in the middle of something or takes nothing of what waits for it, and ends
  // calls that stopped arriving.
  bool sweep_all() override {
    bool lingers = false;
    connections_.for_each([this, &lingers](GrpcConnection& connection) {
      GrpcHttp2& http2 = *connection.http2;
      http2.forgive(kForgiven);
      if (connection.left && began_ - connection.left < kLinger) {
        lingers = true;
        return;
      }
      if (connection.left) return lose(connection);
      if (const std::string_view why = why_closed(connection); !why.empty()) return lose(connection, why);
      http2.for_each([&](GrpcStream& stream) {
        const bool arrives = stream.mode == GrpcStream::kStream ? !stream.in.empty() : !stream.has_message;
        if (arrives && began_ - stream.since > shared_.limits.request) too_slow(stream);
      });
    });
    report_heads();
    memory_.look(heads_ + shared_.held.load(std::memory_order_relaxed));
    return lingers;
  }

  // Empty where it may stay.
  std::string_view why_closed(const GrpcConnection& connection) const {
    const auto is_over = [this](Time since, Time limit) { return since && began_ - since > limit; };
    const bool waits = connection.unsent() || connection.http2->unsent(), reads = connection.armed & EPOLLIN;
    if (!connection.http2->greeted()) return is_over(connection.since, shared_.limits.request) ? "no_greeting" : "";
    if (waits && is_over(connection.since, shared_.limits.keep_alive)) return "takes_nothing";
    return reads && (is_over(connection.frame_since, shared_.limits.request) ||
                     is_over(connection.head_since, shared_.limits.request))
               ? "slow"
               : "";
  }

  void too_slow(GrpcStream& stream) {
    mark(*stream.connection);
    refuse(stream, kDeadline,
           "request: expected each message whole within " + rounded_duration(shared_.limits.request));
  }

  std::shared_ptr<GrpcShared> shared_owner_;
  GrpcShared& shared_;
  CallTickets calls_;
  protocol::PlainCalls plain_calls_;
  protocol::ProtoCallReader reader_;
  protocol::ProtoAnswerWriter writer_;
  std::unique_ptr<char[]> buffer_ = std::make_unique_for_overwrite<char[]>(kRead + kFrameHead + kSmallestFrame);
  std::string joined_, block_;
  std::size_t heads_ = 0, reported_ = 0;  // bytes of heads of this thread's connections, and as others know them
  MemoryReturn memory_;
  GrpcConnection* reads_ = nullptr;  // the connection that is being read
  ConnectionTable<GrpcConnection> connections_;
  std::vector<ConnectionNumber> marked_;
};

}  // namespace astrarium::front
