// Who is at the other end of a connection.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <string>

namespace astrarium::front {

struct Peer {
  std::string host = {};  // empty: nobody knows
  int port = 0;
};

inline Peer peer_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[INET6_ADDRSTRLEN] = {};
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
    return {text, ntohs(four.sin_port)};
  }
  if (address.ss_family != AF_INET6) return {};
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  ::inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof text);
  return {text, ntohs(six.sin6_port)};
}

}  // namespace astrarium::front
