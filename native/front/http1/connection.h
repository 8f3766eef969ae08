// A client's connection: its socket, what it has sent that no answer was given to yet, and what it has not taken.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "front/call_tickets.h"
#include "front/incoming.h"
#include "front/long_way.h"
#include "protocol/trim.h"

namespace astrarium::front {

// HttpLimits in astrarium.server.settings.
struct HttpLimits {
  std::size_t head_bytes, body_bytes, held_bytes;
  Time request, keep_alive;
  std::int64_t connections;  // 0: any number
  std::size_t straight =
      32 << 10;  // from so many bytes that are missing on, tensors are received where workers find them
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
    else if (begin_ > text_.size() / 2) {
      text_.erase(0, begin_);
      begin_ = 0;
    }
  }

  void clear() {
    begin_ = 0;
    protocol::trim(text_, kKept);
  }

 private:
  static constexpr std::size_t kKept = 64;  // bytes

  std::string text_;
  std::size_t begin_ = 0;
};

// Connections by their place. A number's parts are the place, how often that was used before, and the thread.
template <class Connection>
class Connections {
 public:
  Connection& add(int fd, int thread) {
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(all_.size()));
      all_.push_back({std::make_unique<Connection>(), 0});
    }
    Place& place = all_[free_.back()];
    const std::uint64_t generation = place.generation++ & 0xffffffu;
    place.connection->fd = fd;
    place.connection->number =
        std::uint64_t{free_.back()} | generation << 24 | static_cast<std::uint64_t>(thread) << 48;
    free_.pop_back();
    ++open_;
    return *place.connection;
  }

  void remove(Connection& connection) {
    free_.push_back(static_cast<std::uint32_t>(connection.number & 0xffffffu));
    // assigning would keep the memory of texts
    std::destroy_at(&connection);
    std::construct_at(&connection);
    --open_;
  }

  // Nothing where it has closed.
  Connection* find(ConnectionNumber number) {
    const std::size_t slot = number & 0xffffffu;
    if (slot >= all_.size()) return nullptr;
    Connection& connection = *all_[slot].connection;
    return connection.fd >= 0 && connection.number == number ? &connection : nullptr;
  }

  template <class Work>
  void each(Work work) {
    for (std::size_t slot = 0; slot < all_.size(); ++slot)
      if (all_[slot].connection->fd >= 0) work(*all_[slot].connection);
  }

  bool empty() const { return open_ == 0; }

 private:
  struct Place {
    std::unique_ptr<Connection> connection;
    std::uint32_t generation;
  };
  std::vector<Place> all_;
  std::vector<std::uint32_t> free_;
  std::size_t open_ = 0;
};

struct Connection : Caller {
  int fd = -1;  // -1: this place is free
  ConnectionNumber number = 0;

  Bytes in;                            // begins with the first byte of a request
  std::size_t need = 0;                // it is of no use to look at `in` before it has so many bytes
  std::unique_ptr<Incoming> incoming;  // the rest of a large request; `in` is empty then
  bool large = false;                  // the last request was: another may be
  Bytes out;
  Time since = 0;  // when the first byte of this request came, or something last was sent

  // What comes while `ticket` waits for its answer waits too.
  bool closes = false;      // as soon as it is idle
  bool closing = false;     // as soon as it has taken what is left for it
  bool encouraged = false;  // to send the body that it asked about
  bool deaf = false;        // nothing is read any more
  bool lingers = false;     // it is not closed before its client has had time to read the last answer
  bool left = false;        // it has been sent all: what still comes is thrown away

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
  bool is_over() const { return closes && deaf && !is_long && ticket == nullptr && out.empty(); }

  // Whether anything may be read from it now. What comes while a call waits for its answer is read once, so that we
  // hear of clients that leave.
  bool reads() const {
    if (deaf) return left;
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
