// A worker's connection to the server, and how it waits; see serving/live/backends/precise_wait.py.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "common/clock.h"
#include "worker/batch_loop.h"

namespace astrarium::worker {

class SchedulerConnection : public Environment {
 public:
  explicit SchedulerConnection(int socket) : socket_(socket) {
    const timeval quiet{1, 0};  // after which Python may look around
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &quiet, sizeof quiet);
  }

  Time now() override { return front::monotonic_ns(); }

  std::optional<std::string_view> receive() override {
    const ssize_t size = ::recv(socket_, buffer_.data(), buffer_.size(), 0);
    if (size >= 0) return std::string_view(buffer_.data(), static_cast<std::size_t>(size));
    if (errno == EAGAIN || errno == EINTR) return std::nullopt;
    if (errno == ECONNRESET) return std::string_view();
    throw std::system_error(errno, std::generic_category(), "orders cannot be received");
  }

  void say(const std::string& packet) override {
    while (::send(socket_, packet.data(), packet.size(), MSG_NOSIGNAL) < 0)
      if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "news cannot be sent");
  }

  bool wait(Time until, const std::function<bool()>& on_packet) override {
    Time rest = until - now(), early = rest > kNearly ? kNearly : kSpin;
    while (rest > 0) {
      if (readable(std::max<Time>(0, rest - early)) && on_packet()) return false;
      rest = until - now();
      if (rest <= kNearly) early = kSpin;
    }
    return true;
  }

  void wait_for(Time expected, const std::function<bool()>& ready, const std::function<void()>& on_packet) override {
    while (!ready())
      if (readable(pause(expected - now()))) on_packet();
  }

 private:
  // Nanoseconds before the end, as in serving/live/backends/precise_wait.py.
  static constexpr Time kSpin = 80'000, kNearly = 450'000;
  static constexpr Time kLongestPause = 1'000'000;

  // How long not to ask whether something is ready that is expected in *rest*.
  static Time pause(Time rest) {
    if (rest > kSpin) return rest - kSpin;
    return rest > -kSpin ? 0 : std::min(-rest / 8, kLongestPause);
  }

  bool readable(Time within) const {
    pollfd descriptor{socket_, POLLIN, 0};
    const timespec rest{within / 1'000'000'000, within % 1'000'000'000};
    return ::ppoll(&descriptor, 1, &rest, nullptr) > 0;
  }

  int socket_;
  std::string buffer_ = std::string(std::size_t{1} << 18, '\0');  // messages.LARGEST_MESSAGE
};

}  // namespace astrarium::worker
