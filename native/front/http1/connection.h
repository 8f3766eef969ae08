// A client's connection: its socket, what it has sent that no answer was given to yet, and what it has not taken.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "front/byte_queue.h"
#include "front/calls/call_tickets.h"
#include "front/calls/incoming.h"
#include "front/long_way.h"

namespace astrarium::front {

struct Connection : Caller {
  int fd = -1;  // -1: this place is free
  ConnectionNumber number = 0;

  ByteQueue in;                        // begins with the first byte of a request
  std::size_t need = 0;                // it is of no use to look at `in` before it has so many bytes
  std::unique_ptr<Incoming> incoming;  // the rest of a large request; `in` is empty then
  bool large = false;                  // the last request was: another may be
  ByteQueue out;
  Time since = 0;  // when the first byte of this request came, or something last was sent

  // What comes while `ticket` waits for its answer waits too.
  bool closes = false;         // as soon as it is idle
  bool closing = false;        // as soon as it has taken what is left for it
  bool was_continued = false;  // with "100 Continue", for the body that it asked about
  bool input_closed = false;   // nothing is read any more
  bool lingers = false;        // it is not closed before its client has had time to read the last answer
  bool left = false;           // it has been sent all: what still comes is thrown away

  std::optional<std::int64_t> user;  // whose client it is, once somebody has asked

  // The long way.
  bool is_long = false;      // requests go there now
  bool is_known = false;     // Python has a protocol for it
  bool paused = false;       // by Python
  bool stalled = false;      // because too much waits for Python
  bool tell_sent = false;    // Python wants to hear when all is sent
  std::uint64_t passed = 0;  // bytes, to Python

  std::uint32_t armed = 0;  // what epoll waits for

  bool idle() const { return !is_long && ticket == nullptr && !incoming && in.empty() && out.empty(); }
  bool arriving() const { return !is_long && ticket == nullptr && (incoming || !in.empty()) && out.empty(); }

  // Whether the client has sent its last byte and nothing of a request is left to be answered.
  bool is_over() const { return closes && input_closed && !is_long && ticket == nullptr && out.empty(); }

  // Whether anything may be read from it now. What comes while a call waits for its answer is read once, so that we
  // hear of clients that leave.
  bool reads() const {
    if (input_closed) return left;
    if (is_long) return !paused && !stalled;
    if (incoming) return true;
    return out.empty() && (ticket == nullptr || in.empty());
  }

  // Sends what is left; 0, or what is wrong with the socket.
  int flush() {
    while (!out.empty()) {
      const std::string_view rest = out.view();
      const ssize_t sent = ::send(fd, rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) return errno == EAGAIN ? 0 : errno;
      out.consume(static_cast<std::size_t>(sent));
    }
    return 0;
  }
};

}  // namespace astrarium::front
