// Descriptors when they run short. Clients may not take the last ones: workers that start again and files that are
// written need some. And a client for which there is none must hear so: left in the listener's queue, it would wait for
// ever.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <string_view>

namespace astrarium::front {

// From this descriptor on a connection is turned away: new ones get the smallest that is free. Twin of
// `most_descriptors` in astrarium.server.process.descriptors.
inline int most_descriptors() {
  constexpr rlim_t kKept = 32;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur > INT_MAX) return INT_MAX;
  return static_cast<int>(limit.rlim_cur - std::min(kKept, limit.rlim_cur / 8));
}

// A descriptor that is given up for the moment in which a client is told that there is none.
class SpareDescriptor {
 public:
  SpareDescriptor() { take(); }
  ~SpareDescriptor() { give_up(); }
  SpareDescriptor(const SpareDescriptor&) = delete;
  SpareDescriptor& operator=(const SpareDescriptor&) = delete;

  void take() {
    if (fd_ < 0) fd_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  }
  void give_up() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
};

// Says *words* and closes. What the client has sent is read, so that it is not reset before it has read them.
inline void turn_away(int fd, std::string_view words) {
  constexpr int kReads = 16;
  char buffer[4096];
  if (!words.empty()) ::send(fd, words.data(), words.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  ::shutdown(fd, SHUT_WR);
  for (int left = kReads; left > 0 && ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) > 0; --left) {
  }
  ::close(fd);
}

}  // namespace astrarium::front
