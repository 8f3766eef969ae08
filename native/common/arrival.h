// When bytes came: the kernel's own stamp, where it has one, tells how long they waited in the socket.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#include <cstddef>
#include <cstring>

#include "common/clock.h"

namespace astrarium::front {

// Asks for stamps on a connection; without them all is as if bytes had come when somebody first looked.
inline void stamp_arrivals(int fd) {
  const int yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &yes, sizeof yes);
}

// Reads without waiting; *stamp* is when the last of it came, by the wall clock, and 0 where nobody knows.
inline ssize_t receive_stamped(int fd, char* to, std::size_t size, Time& stamp) {
  iovec data{to, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(timespec))];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT);
  stamp = 0;
  if (got <= 0) return got;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SO_TIMESTAMPNS) return got;
  timespec when{};
  std::memcpy(&when, CMSG_DATA(header), sizeof when);
  stamp = Time{1'000'000'000} * when.tv_sec + when.tv_nsec;
  return got;
}

// How far the wall clock is ahead of the one that never jumps.
inline Time wall_clock_ahead() {
  timespec wall{};
  ::clock_gettime(CLOCK_REALTIME, &wall);
  return Time{1'000'000'000} * wall.tv_sec + wall.tv_nsec - monotonic_ns();
}

}  // namespace astrarium::front
