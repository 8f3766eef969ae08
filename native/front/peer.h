// Who is at the other end of a connection.
#pragma once

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

namespace astrarium::front {

struct Peer {
  std::string host = {};  // empty: nobody knows
  int port = 0;
  std::int64_t user = -2;  // of this machine, as in RegionOwner: nobody has asked
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

// An end of a connection over loopback as the kernel names it; false for any other.
inline bool loopback_end(const sockaddr_storage& address, std::uint8_t& family, std::uint16_t& port,
                         std::uint32_t (&words)[4]) {
  family = static_cast<std::uint8_t>(address.ss_family);
  if (family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    port = four.sin_port;
    words[0] = four.sin_addr.s_addr;
    return ntohl(words[0]) >> 24 == IN_LOOPBACKNET;
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
  if (family != AF_INET6) return false;
  port = six.sin6_port;
  std::memcpy(words, &six.sin6_addr, sizeof words);
  if (IN6_IS_ADDR_LOOPBACK(&six.sin6_addr)) return true;
  if (!IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return false;
  family = AF_INET;  // that is how the client's own socket is known
  words[0] = words[3];
  words[1] = words[2] = words[3] = 0;
  return ntohl(words[0]) >> 24 == IN_LOOPBACKNET;
}

// Asks the kernel whose socket the other end of a connection over loopback is. A socket that nobody has any more says
// nothing: it would be root's.
inline std::optional<std::int64_t> user_of_peer(int fd) {
  constexpr std::int64_t kNobody = 65534;  // also everybody of whom this namespace of users knows nothing
  struct {
    nlmsghdr head;
    inet_diag_req_v2 body;
  } question{};
  sockaddr_storage theirs{}, ours{};
  socklen_t size = sizeof theirs, size_of_ours = sizeof ours;
  std::uint8_t family = 0, family_of_ours = 0;
  inet_diag_sockid& id = question.body.id;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &size) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&ours), &size_of_ours) != 0 ||
      !loopback_end(theirs, family, id.idiag_sport, id.idiag_src) ||
      !loopback_end(ours, family_of_ours, id.idiag_dport, id.idiag_dst) || family != family_of_ours)
    return std::nullopt;
  question.head.nlmsg_len = sizeof question;
  question.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.head.nlmsg_flags = NLM_F_REQUEST;
  question.body.sdiag_family = family;
  question.body.sdiag_protocol = IPPROTO_TCP;
  question.body.idiag_states = ~0u;
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const int kernel = ::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (kernel < 0) return std::nullopt;
  alignas(nlmsghdr) char answer[1024];
  const bool asked = ::send(kernel, &question, sizeof question, 0) == sizeof question;
  const ssize_t got = asked ? ::recv(kernel, answer, sizeof answer, MSG_DONTWAIT) : -1;  // it answers while it is asked
  ::close(kernel);
  const auto& head = reinterpret_cast<const nlmsghdr&>(answer);
  if (got < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(inet_diag_msg))) || head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
    return std::nullopt;
  const auto& found = *reinterpret_cast<const inet_diag_msg*>(answer + NLMSG_HDRLEN);
  constexpr std::uint8_t kEstablished = 1;
  if (found.idiag_state != kEstablished || found.idiag_inode == 0 || found.idiag_uid == kNobody) return std::nullopt;
  return found.idiag_uid;
}

}  // namespace astrarium::front
