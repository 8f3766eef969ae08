// A client's connection: its socket, what it has sent that no answer was given to yet, and what it has not taken.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

#include "../express/call.h"
#include "long_way.h"
#include "ticket.h"

namespace astrarium::front {

struct Connection;

// A call on its way, and whose it is.
struct Pending : Ticket {
  express::Call call;
  Connection* connection = nullptr;  // nothing: its client has gone

  // Of an input, once its bytes lie where workers find them.
  std::size_t input_bytes(std::size_t at, std::size_t limit) const {
    return inputs.empty() ? call.model->inputs[at].bytes(call.inputs[at].shape, limit).value_or(0) : inputs[at].bytes;
  }

  // What one large call needed is not kept for small ones.
  void trim() {
    constexpr std::size_t kKept = 1 << 16;
    for (express::Part& part : call.inputs)
      if (part.made.capacity() > kKept) part.made = std::string();
  }
};

// Bytes of which the first ones go first. An empty one holds next to no memory.
class Bytes {
 public:
  bool empty() const { return size() == 0; }
  std::size_t size() const { return text_.size() - begin_; }
  std::string_view view() const { return std::string_view(text_).substr(begin_); }
  void append(std::string_view more) { text_.append(more); }
  void reserve(std::size_t size) { text_.reserve(size); }

  void consume(std::size_t count) {
    begin_ += count;
    if (begin_ == text_.size()) clear();
    else if (begin_ > text_.size() / 2) text_.erase(0, begin_), begin_ = 0;
  }

  void clear() {
    begin_ = 0;
    if (text_.capacity() > kKept) text_ = std::string();
    else text_.clear();
  }

 private:
  static constexpr std::size_t kKept = 64;  // bytes

  std::string text_;
  std::size_t begin_ = 0;
};

struct Connection {
  int fd = -1;  // -1: this place is free
  std::uint32_t slot = 0, generation = 0;
  ConnectionNumber number = 0;

  Bytes in;              // begins with the first byte of a request
  std::size_t need = 0;  // it is of no use to look at `in` before it has so many bytes
  Bytes out;
  Time since = 0;  // when the first byte of this request came, or something last was sent

  Pending* pending = nullptr;  // the call that waits for its answer; what comes meanwhile waits too
  bool closes = false;         // as soon as it is idle
  bool closing = false;        // as soon as it has taken what is left for it
  bool encouraged = false;     // to send the body that it asked about
  bool deaf = false;           // nothing is read any more

  // The long way.
  bool is_long = false;      // requests go there now
  bool is_known = false;     // Python has a protocol for it
  bool paused = false;       // by Python
  bool stalled = false;      // because too much waits for Python
  bool tell_sent = false;    // Python wants to hear when all is sent
  std::uint64_t passed = 0;  // bytes, to Python

  std::uint32_t armed = 0;  // what epoll waits for

  bool idle() const { return !is_long && pending == nullptr && in.empty() && out.empty(); }
  bool arriving() const { return !is_long && pending == nullptr && !in.empty() && out.empty(); }

  // Whether anything may be read from it now. What comes while a call waits for its answer is read once, so that we
  // hear of clients that leave.
  bool reads() const {
    if (deaf) return false;
    if (is_long) return !paused && !stalled;
    return out.empty() && (pending == nullptr || in.empty());
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
