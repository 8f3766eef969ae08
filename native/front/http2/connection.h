// The server's side of an HTTP/2 connection (RFC 9113), without its socket: frames become events of streams, and what
// is sent on a stream becomes frames, as fast as the client's windows allow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "front/http2/fields.h"
#include "front/http2/frames.h"
#include "front/http2/header_compression.h"
#include "front/http2/reset_budget.h"
#include "front/http2/stream.h"
#include "front/http2/stream_history.h"

namespace astrarium::front {

template <class Stream>
class Http2Connection {
 public:
  using Service = Http2Service<Stream>;

  Http2Connection(Service& service, const Http2Limits& limits)
      : service_(&service), limits_(limits), resets_(limits.resets) {
    greet();
  }

  // Takes whole frames from the front of *data*, until it is paused; how many bytes that were.
  std::size_t receive(std::string_view data) {
    const std::size_t before = data.size();
    forget_spare();
    if (!greeted_ && !take_preface(data)) return before - data.size();
    while (!broken_ && !paused && data.size() >= kFrameHead) {
      const FrameHead head = FrameHead::read(data);
      if (head.size > kSmallestFrame) break_off(Http2Error::kFrameSize, "a frame is larger than announced");
      if (broken_ || data.size() < kFrameHead + head.size) break;
      take(head, data.substr(kFrameHead, head.size));
      data.remove_prefix(kFrameHead + head.size);
    }
    if (std::exchange(has_window_, false) && !broken_) send_waiting();  // once, however many frames open windows
    return broken_ ? before : before - data.size();
  }

  // *block*: fields; after them comes data, or nothing more.
  void send_head(Stream& stream, std::string_view block, bool ends) {
    stream.has_head = true;
    append_block(stream.id, block, ends);
    if (ends) close(stream, Http2Error::kNone);
  }

  void send_data(Stream& stream, std::string_view data) {
    if (stream.out.empty()) data.remove_prefix(send_now(stream, data));
    if (data.empty()) return;
    stream.out.append(data);
    unsent_ += data.size();
    wait(stream);
  }

  // After all data; the stream is closed once the client's windows have let it pass.
  void send_trailers(Stream& stream, std::string_view block) {
    if (!stream.out.empty()) {
      stream.ends = true;
      stream.trailers.assign(block);
      return;
    }
    append_block(stream.id, block, true);
    close(stream, Http2Error::kNone);
  }

  // The client may send as much more on a stream as it has sent; announced when that is worth a frame.
  void allow_more(Stream& stream) {
    if (stream.client_ended || stream.used < limits_.window / 2) return;
    append_window(out_, stream.id, stream.used);
    stream.window += std::exchange(stream.used, 0);
  }

  void reset(Stream& stream, Http2Error error) {
    append_reset(out_, stream.id, error);
    if (!stream.client_ended) history_.left(stream.id);
    remove(stream);
  }

  Stream* find(std::uint32_t id) {
    const auto entry = streams_.find(id);
    return entry == streams_.end() ? nullptr : entry->second.get();
  }

  // Asks the client to open no more streams; `gone` follows once it knows.
  void go_away() {
    if (std::exchange(leaving_, true)) return;
    append_go_away(out_, kLastStream, Http2Error::kNone, "");
    append_ping(out_, kLeaving, false);
  }

  // Has the connection closed as soon as `out` is sent. *reason*: a word for who counts them.
  void break_off(Http2Error error, std::string_view reason, std::string_view why) {
    if (std::exchange(broken_, true)) return;
    reason_ = reason;
    append_go_away(out_, history_.last(), error, why);
  }

  // The client may abandon some more of its calls, because time has passed.
  void forgive(std::size_t resets) {
    resets_.earn(resets);
    forget_spare();
  }
  // The client has made us do work for nothing.
  void charge() {
    if (!resets_.spend())
      break_off(Http2Error::kCalm, "resets", "too many calls were reset or refused, of those that were answered");
  }

  // Ends all streams: there is no connection any more.
  void end() {
    while (!streams_.empty()) remove(*streams_.begin()->second);
  }

  bool greeted() const { return greeted_; }
  bool broken() const { return broken_; }                   // it is to be closed as soon as `out` is sent
  std::string_view reason() const { return reason_; }       // why it is broken; lives for ever
  bool gone() const { return gone_ && streams_.empty(); }   // so is this one
  bool in_head() const { return block_stream_ != 0; }       // a header block is not whole
  std::size_t head_bytes() const { return block_.size(); }  // of that
  std::size_t streams() const { return streams_.size(); }
  std::size_t unsent() const { return unsent_; }
  std::size_t moved() const { return moved_; }  // bytes of data that the client's windows have let pass
  std::string& out() { return out_; }           // what is to be sent, for the owner to take
  template <class Work>
  void for_each(Work work) {
    std::vector<Stream*> open_streams;  // some may be no more after this
    for (auto& [id, stream] : streams_) open_streams.push_back(stream.get());
    for (Stream* stream : open_streams) work(*stream);
  }

  bool paused = false;        // no more frames are taken for now
  std::size_t abandoned = 0;  // work for streams that are no more: who resets them all the time opens no others

 private:
  using Streams = std::unordered_map<std::uint32_t, std::unique_ptr<Stream>>;
  static constexpr std::string_view kLeaving = "leaving.";  // eight bytes
  static constexpr std::int64_t kWindow = 1 << 24;  // bytes of the connection: what is held is bounded elsewhere
  static constexpr int kMostFrames = 1024;          // of one header block
  // Times what was announced of a head, before and after it is read. What is less costs its stream, and no other.
  static constexpr std::size_t kMostCompressed = 4, kMostUnfolded = 16;
  static constexpr std::size_t kSpare = 64;  // streams that are kept for the next ones

  static std::string_view word(Http2Error error) {
    switch (error) {
      case Http2Error::kFlowControl: return "flow_control";
      case Http2Error::kStreamClosed: return "stream_closed";
      case Http2Error::kFrameSize: return "frame_size";
      case Http2Error::kCompression: return "compression";
      default: return "protocol";
    }
  }

  void greet() {
    append_head(out_, std::size_t{6} * 3, Frame::kSettings, 0, 0);
    append_setting(out_, Setting::kStreams, static_cast<std::uint32_t>(limits_.streams));
    append_setting(out_, Setting::kWindow, static_cast<std::uint32_t>(limits_.window));
    append_setting(out_, Setting::kHeaders, static_cast<std::uint32_t>(limits_.head_bytes));
    append_window(out_, 0, kWindow - kFirstWindow);
  }

  bool take_preface(std::string_view& data) {
    const auto common = std::min(data.size(), kPreface.size());
    if (data.substr(0, common) != kPreface.substr(0, common)) {
      broken_ = true;
      reason_ = "not_http2";
      return false;
    }
    if (common < kPreface.size()) return false;
    data.remove_prefix(common);
    return greeted_ = true;
  }

  void break_off(Http2Error error, std::string_view why) { break_off(error, word(error), why); }
  void break_off() { break_off(Http2Error::kProtocol, "a frame that does not belong here"); }

  void take(const FrameHead& head, std::string_view body) {
    if (block_stream_ && (head.type != Frame::kContinuation || head.stream != block_stream_)) return break_off();
    if (!has_settings_ && (head.type != Frame::kSettings || head.flags & kAck))
      return break_off(Http2Error::kProtocol, "the first frame must be SETTINGS");
    switch (head.type) {
      case Frame::kData: return data(head, body);
      case Frame::kHeaders: return headers(head, body);
      case Frame::kPriority: return priority(head, body);
      case Frame::kReset: return was_reset(head);
      case Frame::kSettings: return settings(head, body);
      case Frame::kPush: return break_off();
      case Frame::kPing: return ping(head, body);
      case Frame::kGoAway: return client_goes(head);
      case Frame::kWindow: return window(head, body);
      case Frame::kContinuation: return continuation(head, body);
      default: return;  // frames that nobody knows are nothing
    }
  }

  void offend(Stream& stream, Http2Error error) {
    reset(stream, error);
    charge();
  }
  // Of a stream that may be no more; one that was never opened cannot be reset.
  void offend(std::uint32_t id, Http2Error error) {
    if (Stream* stream = find(id)) return offend(*stream, error);
    if (history_.of(id) == StreamHistory::kIdle) return break_off(error, "a frame that does not belong here");
    append_reset(out_, id, error);
    charge();
  }

  // False where that broke the connection: the frame is too short for what its flags say.
  bool strip_padding(const FrameHead& head, std::string_view& body) {
    if (!(head.flags & kPadded)) return true;
    if (body.empty()) return break_off(Http2Error::kFrameSize, "a padded frame has at least a byte"), false;
    const auto padding = static_cast<unsigned char>(body[0]);
    body.remove_prefix(1);
    if (padding > body.size()) return break_off(Http2Error::kProtocol, "the padding is longer than its frame"), false;
    body.remove_suffix(padding);
    return true;
  }

  void headers(const FrameHead& head, std::string_view body) {
    constexpr std::size_t kPriorityBytes = 5;
    if (head.stream % 2 == 0) return break_off();
    if (!strip_padding(head, body)) return;
    block_is_wrong_ = false;
    if (head.flags & kHasPriority) {
      if (body.size() < kPriorityBytes) return break_off(Http2Error::kFrameSize, "a priority has five bytes");
      block_is_wrong_ = (read_number(body, 0, 4) & kLastStream) == head.stream;  // it depends on itself
      body.remove_prefix(kPriorityBytes);
    }
    block_ends_ = head.flags & kEndStream;
    if (head.flags & kEndHeaders) return block(head.stream, body);
    block_stream_ = head.stream;
    block_frames_ = 1;
    block_.assign(body);
  }

  void continuation(const FrameHead& head, std::string_view body) {
    if (!block_stream_) return break_off();
    if (block_.size() + body.size() > kMostCompressed * limits_.head_bytes || ++block_frames_ > kMostFrames)
      return break_off(Http2Error::kCalm, "head",
                       "a head is many times larger than announced, or comes in too many frames");
    block_ += body;
    if (!(head.flags & kEndHeaders)) return;
    block(std::exchange(block_stream_, 0), block_);
    protocol::trim(block_);
  }

  // A whole header block: of a new stream, of the end of one, or of one that is no more.
  void block(std::uint32_t id, std::string_view block) {
    if (id <= history_.last()) return later_block(id, block);
    history_.opened(id);
    Stream& stream = make(id);
    stream.client_ended = block_ends_;
    if (!decode_head(stream, block)) return;
    if (gone_) return reset(stream, Http2Error::kRefused);
    if (block_is_wrong_ || !head_.well_formed()) return offend(stream, Http2Error::kProtocol);
    if (block_ends_ && head_.length() > 0) return offend(stream, Http2Error::kProtocol);
    if (streams_.size() + abandoned > limits_.streams || unsent_ > limits_.unsent)
      return offend(stream, Http2Error::kRefused);
    stream.length = head_.length();
    service_->opened(stream);
    if (block_ends_ && stream.id == id) service_->ended(stream);
  }

  // A head that is too large is read to its end, for the table, though nobody hears of the rest.
  bool decode_head(Stream& stream, std::string_view block) {
    head_.begin();
    std::size_t size = 0;
    const bool whole = decoder_.decode(block, [&](std::string_view name, std::string_view value, bool clean) {
      size += name.size() + value.size() + kFieldOverhead;
      if (head_.take(name, value, clean) && size <= limits_.head_bytes) service_->field(stream, name, value);
    });
    stream.head_bytes = size;
    if (!whole) return break_off(Http2Error::kCompression, "a head that cannot be read"), false;
    if (size <= kMostUnfolded * limits_.head_bytes) return true;
    return break_off(Http2Error::kCalm, "head", "a head is many times larger than announced"), false;
  }

  // Of a stream that was opened before: trailers, if anything.
  void later_block(std::uint32_t id, std::string_view block) {
    Stream* stream = find(id);
    const auto past = history_.of(id);
    if (stream == nullptr && past == StreamHistory::kSkipped)
      return break_off(Http2Error::kProtocol, "a new stream has a smaller number than one before it");
    if (stream == nullptr && past != StreamHistory::kLeft)
      return break_off(Http2Error::kStreamClosed, "a head on a stream that is closed");
    bool good = !block_is_wrong_;
    const bool whole = decoder_.decode(block, [&good](std::string_view name, std::string_view value, bool clean) {
      good = good && clean && name.front() != ':' && !is_about_connection(name, value);
    });
    if (!whole) return break_off(Http2Error::kCompression, "a head that cannot be read");
    if (stream == nullptr) return;
    if (stream->client_ended) return offend(*stream, Http2Error::kStreamClosed);
    if (!good || !block_ends_ || is_short(*stream)) return offend(*stream, Http2Error::kProtocol);
    client_ended(*stream);
  }

  void priority(const FrameHead& head, std::string_view body) {
    if (!head.stream) return break_off();
    if (head.size != 5) return offend(head.stream, Http2Error::kFrameSize);
    if ((read_number(body, 0, 4) & kLastStream) == head.stream) offend(head.stream, Http2Error::kProtocol);
  }

  void forget_spare() {
    if (spare_.size() > kSpare) spare_.resize(kSpare);
  }

  Stream& make(std::uint32_t id) {
    std::unique_ptr<Stream>& stream = streams_[id];
    if (spare_.empty()) spare_.push_back(std::make_unique<Stream>());
    stream = std::move(spare_.back());
    spare_.pop_back();
    stream->id = id;
    stream->window = limits_.window;
    return *stream;
  }

  void data(const FrameHead& head, std::string_view body) {
    if (history_.is_idle(head.stream)) return break_off();
    if (!strip_padding(head, body)) return;
    const auto size = static_cast<std::int64_t>(head.size);  // with its padding
    if (size > window_ - received_) return break_off(Http2Error::kFlowControl, "more data than announced");
    if ((received_ += size) >= kWindow / 2) append_window(out_, 0, std::exchange(received_, 0));
    Stream* stream = find(head.stream);
    if (stream == nullptr) return late_data(head.stream);
    if (stream->client_ended) return offend(*stream, Http2Error::kStreamClosed);
    if (size > stream->window) return offend(*stream, Http2Error::kFlowControl);
    stream->window -= size;
    stream->used += size;
    stream->got += static_cast<std::int64_t>(body.size());
    const bool ends = head.flags & kEndStream;
    if (stream->length >= 0 && (stream->got > stream->length || (ends && is_short(*stream))))
      return offend(*stream, Http2Error::kProtocol);
    stream->client_ended = ends;
    service_->data(*stream, body);
    if (ends && stream->id == head.stream) service_->ended(*stream);
  }

  void late_data(std::uint32_t id) {
    if (history_.of(id) != StreamHistory::kLeft)
      break_off(Http2Error::kStreamClosed, "data on a stream that is closed");
  }

  // Whether less data came than its head has announced.
  static bool is_short(const Stream& stream) { return stream.got < stream.length; }

  void client_ended(Stream& stream) {
    stream.client_ended = true;
    service_->ended(stream);
  }

  std::size_t send_now(Stream& stream, std::string_view data) {
    std::size_t sent = 0;
    while (sent < data.size()) {
      const std::int64_t window = std::min(send_window_, client_window_ + stream.send_window);
      if (window <= 0) break;
      const std::size_t size = std::min({data.size() - sent, static_cast<std::size_t>(window), largest_});
      append_head(out_, size, Frame::kData, 0, stream.id);
      out_ += data.substr(sent, size);
      sent += size;
      moved_ += size;
      send_window_ -= static_cast<std::int64_t>(size);
      stream.send_window -= static_cast<std::int64_t>(size);
    }
    return sent;
  }

  void wait(Stream& stream) {
    if (std::exchange(stream.waits, true)) return;
    if (waiting_.size() > 2 * streams_.size() + kSpare)
      std::erase_if(waiting_, [this](std::uint32_t id) { return find(id) == nullptr; });
    waiting_.push_back(stream.id);
  }

  // Sends on the streams that wait, in the order in which they began to, as long as there is a window.
  void send_waiting() {
    const std::vector<std::uint32_t> ids = std::exchange(waiting_, {});
    for (const std::uint32_t id : ids) {
      Stream* stream = find(id);
      if (stream == nullptr) continue;
      stream->waits = false;
      if (!send_rest(*stream)) wait(*stream);
    }
  }

  // Whether nothing is left; the stream may be no more then.
  bool send_rest(Stream& stream) {
    if (stream.out.empty()) return true;
    const std::size_t sent = send_now(stream, stream.out.view());
    stream.out.consume(sent);
    unsent_ -= sent;
    if (!stream.out.empty()) return false;
    if (stream.ends) send_trailers(stream, std::exchange(stream.trailers, {}));
    else service_->sent(stream);
    return true;
  }

  // A header block, in as many frames as it needs.
  void append_block(std::uint32_t id, std::string_view block, bool ends) {
    Frame type = Frame::kHeaders;
    unsigned flags = ends ? kEndStream : 0;
    do {
      const std::string_view piece = block.substr(0, largest_);
      block.remove_prefix(piece.size());
      append_head(out_, piece.size(), type, flags | (block.empty() ? kEndHeaders : 0), id);
      out_ += piece;
      type = Frame::kContinuation;
      flags = 0;
    } while (!block.empty());
  }

  // Nothing more is sent; nothing more is read either.
  void close(Stream& stream, Http2Error error) {
    if (!stream.client_ended) {
      append_reset(out_, stream.id, error);
      history_.left(stream.id);
    }
    resets_.earn(1);
    remove(stream);
  }

  // Its place is used again only for a stream that is opened later: who holds it sees that it is no more.
  void remove(Stream& stream) {
    service_->closed(stream);
    unsent_ -= stream.out.size();
    auto entry = streams_.find(stream.id);
    std::unique_ptr<Stream> removed = std::move(entry->second);
    streams_.erase(entry);
    removed->clear();
    spare_.push_back(std::move(removed));
  }

  void was_reset(const FrameHead& head) {
    if (head.size != 4) return break_off(Http2Error::kFrameSize, "a reset has four bytes");
    if (history_.is_idle(head.stream)) return break_off();
    Stream* stream = find(head.stream);
    if (stream == nullptr) return;
    const bool is_free = service_->has_waited(*stream);
    remove(*stream);
    if (!is_free) charge();
  }

  void client_goes(const FrameHead& head) {  // it opens no more streams, and closes when it likes
    if (head.stream) return break_off();
    if (head.size < 8) break_off(Http2Error::kFrameSize, "a GOAWAY has eight bytes");
  }

  void settings(const FrameHead& head, std::string_view body) {
    constexpr std::size_t kEach = 6;
    if (head.stream) return break_off();
    has_settings_ = true;
    if (head.flags & kAck)
      return head.size ? break_off(Http2Error::kFrameSize, "an acknowledgement has no settings") : void();
    if (body.size() % kEach) return break_off(Http2Error::kFrameSize, "settings have six bytes each");
    for (std::size_t at = 0; at < body.size() && !broken_; at += kEach)
      setting(static_cast<Setting>(read_number(body, at, 2)), read_number(body, at + 2, 4));
    if (broken_) return;
    append_head(out_, 0, Frame::kSettings, kAck, 0);
    has_window_ = true;
  }

  void setting(Setting setting, std::uint32_t value) {
    if (setting == Setting::kFrame) {
      if (value < kSmallestFrame || value > kLargestFrame) return break_off();
      largest_ = value;
    } else if (setting == Setting::kWindow) {
      if (value > kLargestWindow || overflows(value))
        return break_off(Http2Error::kFlowControl, "a window is larger than it can be");
      client_window_ = value;
    } else if (setting == Setting::kPush && value > 1) {
      break_off();
    }
  }

  // Whether a stream's window would be larger than it can be. Streams are looked at only where one might be.
  bool overflows(std::uint32_t value) {
    if (value + largest_send_window_ <= kLargestWindow) return false;
    largest_send_window_ = 0;
    for (const auto& [id, stream] : streams_)
      largest_send_window_ = std::max(largest_send_window_, stream->send_window);
    return value + largest_send_window_ > kLargestWindow;
  }

  void ping(const FrameHead& head, std::string_view body) {
    if (head.stream) return break_off();
    if (head.size != 8) return break_off(Http2Error::kFrameSize, "a ping has eight bytes");
    if (!(head.flags & kAck)) return append_ping(out_, body, true);
    if (!leaving_ || gone_ || body != kLeaving) return;
    gone_ = true;
    append_go_away(out_, history_.last(), Http2Error::kNone, "");
  }

  void window(const FrameHead& head, std::string_view body) {
    if (head.size != 4) return break_off(Http2Error::kFrameSize, "a window has four bytes");
    const std::int64_t more = read_number(body, 0, 4) & kLargestWindow;
    if (head.stream && history_.is_idle(head.stream)) return break_off();
    Stream* stream = head.stream ? find(head.stream) : nullptr;
    if (head.stream && stream == nullptr) return;
    std::int64_t& window = stream != nullptr ? stream->send_window : send_window_;
    const std::int64_t least = stream != nullptr ? client_window_ : 0;
    if (more == 0 || least + window + more > kLargestWindow) {
      if (stream != nullptr) return offend(*stream, more ? Http2Error::kFlowControl : Http2Error::kProtocol);
      return more ? break_off(Http2Error::kFlowControl, "a window is larger than it can be") : break_off();
    }
    window += more;
    if (stream == nullptr) {
      has_window_ = true;
      return;
    }
    largest_send_window_ = std::max(largest_send_window_, window);
    send_rest(*stream);
  }

  Service* service_;
  Http2Limits limits_;
  HpackDecoder decoder_;
  std::string out_, block_;
  Streams streams_;
  std::vector<std::unique_ptr<Stream>> spare_;
  std::vector<std::uint32_t> waiting_;
  StreamHistory history_;
  RequestHead head_;
  ResetBudget resets_;
  std::string_view reason_;
  std::uint32_t block_stream_ = 0;
  int block_frames_ = 0;
  bool has_window_ = false;  // the client allows more than when we last sent what waits
  bool block_ends_ = false, block_is_wrong_ = false, has_settings_ = false;
  bool greeted_ = false, broken_ = false, leaving_ = false, gone_ = false;
  std::int64_t send_window_ = kFirstWindow, client_window_ = kFirstWindow, window_ = kWindow, received_ = 0;
  std::int64_t largest_send_window_ = 0;  // of a stream: no less than any is
  std::size_t largest_ = kSmallestFrame, unsent_ = 0, moved_ = 0;
};

}  // namespace astrarium::front
