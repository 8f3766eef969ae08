// A stream of HTTP/2 as a protocol on it sees it: what it has, what is heard of it, and how much of it there may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "front/byte_queue.h"

namespace astrarium::front {

// What every stream has; a protocol's own streams have more.
struct Http2Stream {
  std::uint32_t id = 0;               // 0: it is no more
  std::int64_t send_window = 0;       // bytes that the client allows us, beyond what it allows every stream
  std::int64_t window = 0, used = 0;  // bytes that we allow the client, and that came since we last did
  std::int64_t length = -1, got = 0;  // bytes of data that its head announced, if it did, and that came
  std::size_t head_bytes = 0;         // of its fields, as SETTINGS_MAX_HEADER_LIST_SIZE counts them
  bool client_ended = false;          // it sends no more
  bool has_head = false;              // the client has our first headers
  bool ends = false, waits = false;   // once `out` is sent so is `trailers`; it is among those that wait
  ByteQueue out;                      // data for which there was no window yet
  std::string trailers;               // a header block
};

// What a protocol hears of its streams.
template <class Stream>
class Http2Service {
 public:
  virtual ~Http2Service() = default;
  // A field of the request's head, as long as that is well-formed and no larger than announced.
  virtual void field(Stream& stream, std::string_view name, std::string_view value) = 0;
  // Its head is well-formed; it may be larger than announced.
  virtual void opened(Stream& stream) = 0;
  virtual void data(Stream& stream, std::string_view data) = 0;
  virtual void ended(Stream& stream) = 0;
  // Its last byte is with the client, or the client wants no more, or there is no connection: it is no more after this.
  virtual void closed(Stream& stream) = 0;
  // Of `out` nothing is left.
  virtual void sent(Stream& stream) = 0;
  // The client has reset it. Whether it waited so long for its answer that this is nobody's fault.
  virtual bool has_waited(const Stream& stream) = 0;
};

struct Http2Limits {
  std::size_t head_bytes;  // of a head's fields, with what HPACK counts for each
  std::size_t streams;     // at once
  std::size_t resets;      // that a client may have in reserve
  std::int64_t window;     // of a stream
  std::size_t unsent;      // bytes: who takes so little opens no more streams
};

}  // namespace astrarium::front
