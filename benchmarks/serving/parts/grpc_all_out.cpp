// As many calls over gRPC as a server answers: grpc_all_out PORT SECONDS CONNECTIONS OUTSTANDING MESSAGE-FILE...
//
// Each connection keeps so many calls under way, and sends the next one when an answer has come. Heads are written
// without compression and answers are not read beyond their status, so that the server is what is measured. Says
// {"answered": N, "failed": N, "wall_s": S}.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

void number(std::string& out, std::uint32_t value, int bytes) {
  while (bytes-- > 0) out += static_cast<char>(value >> 8 * bytes);
}

void head(std::string& out, std::size_t size, int type, int flags, std::uint32_t stream) {
  number(out, static_cast<std::uint32_t>(size), 3), number(out, static_cast<std::uint32_t>(type), 1);
  number(out, static_cast<std::uint32_t>(flags), 1), number(out, stream, 4);
}

void field(std::string& out, const std::string& name, const std::string& value) {
  out += '\0', out += static_cast<char>(name.size()), out += name;
  out += static_cast<char>(value.size()), out += value;
}

std::string fields() {
  std::string made = "\x83\x86";  // POST, http
  field(made, ":path", "/inference.GRPCInferenceService/ModelInfer");
  field(made, ":authority", "127.0.0.1"), field(made, "te", "trailers"), field(made, "content-type", "application/grpc");
  return made;
}

struct Counts {
  long answered = 0, failed = 0;
};

class Client {
 public:
  Client(int port, int outstanding, const std::vector<std::string>& messages, std::size_t first) : messages_(messages), next_message_(first) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK), address.sin_port = htons(static_cast<std::uint16_t>(port));
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::perror("connect"), std::exit(1);
    const int yes = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    out_ = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    head(out_, 6, 4, 0, 0), number(out_, 4, 2), number(out_, 0x7fffffff, 4);             // any answer fits a stream
    head(out_, 4, 8, 0, 0), number(out_, 0x7fffffff - 65535, 4);
    for (int i = 0; i < outstanding; ++i) ask();
    send();
  }

  int fd() const { return fd_; }

  void hear(Counts& counts, bool more) {
    char buffer[1 << 16];
    const ssize_t size = ::recv(fd_, buffer, sizeof buffer, 0);
    if (size <= 0) std::fprintf(stderr, "the server has closed a connection\n"), std::exit(1);
    in_.append(buffer, static_cast<std::size_t>(size));
    std::size_t at = 0;
    while (in_.size() - at >= 9) {
      const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(in_[at + i])); };
      const std::size_t length = byte(0) << 16 | byte(1) << 8 | byte(2);
      if (in_.size() - at < 9 + length) break;
      frame(byte(3), byte(4), in_.substr(at + 9, length), counts, more);
      at += 9 + length;
    }
    in_.erase(0, at);
    send();
  }

  int under_way = 0;

 private:
  void frame(std::uint32_t type, std::uint32_t flags, const std::string& body, Counts& counts, bool more) {
    if (type == 6 && !(flags & 1)) return head(out_, 8, 6, 1, 0), void(out_ += body);  // a ping
    if (type == 0) return allow(length_ += body.size());
    if (type != 1 || !(flags & 1)) return;                                             // the end of a stream: its status
    ++(body.find(std::string("grpc-status\x01") + "0") != std::string::npos ? counts.answered : counts.failed);
    --under_way;
    if (more) ask();
  }

  void allow(std::size_t received) {
    if (received < 1 << 20) return;
    head(out_, 4, 8, 0, 0), number(out_, static_cast<std::uint32_t>(received), 4);
    length_ = 0;
  }

  void ask() {
    static const std::string kFields = fields();
    const std::string& message = messages_[next_message_++ % messages_.size()];
    head(out_, kFields.size(), 1, 4, stream_), out_ += kFields;
    head(out_, 5 + message.size(), 0, 1, stream_), out_ += '\0', number(out_, static_cast<std::uint32_t>(message.size()), 4), out_ += message;
    stream_ += 2, ++under_way;
  }

  void send() {
    for (std::size_t at = 0; at < out_.size();) {
      const ssize_t sent = ::send(fd_, out_.data() + at, out_.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) std::perror("send"), std::exit(1);
      at += static_cast<std::size_t>(sent);
    }
    out_.clear();
  }

  const std::vector<std::string>& messages_;
  std::size_t next_message_, length_ = 0;
  int fd_ = -1;
  std::uint32_t stream_ = 1;
  std::string in_, out_;
};

}  // namespace

int main(int count, char** words) {
  if (count < 6) return std::fprintf(stderr, "PORT SECONDS CONNECTIONS OUTSTANDING MESSAGE-FILE...\n"), 2;
  std::vector<std::string> messages;
  for (int i = 5; i < count; ++i) {
    std::ifstream file(words[i], std::ios::binary);
    messages.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  const int connections = std::atoi(words[3]);
  const auto begin = Clock::now(), end = begin + std::chrono::microseconds(static_cast<long>(1e6 * std::atof(words[2])));
  Counts counts;
  std::vector<Client> clients;
  clients.reserve(static_cast<std::size_t>(connections));
  for (int i = 0; i < connections; ++i) clients.emplace_back(std::atoi(words[1]), std::atoi(words[4]), messages, static_cast<std::size_t>(i));
  std::vector<pollfd> waits;
  for (const Client& client : clients) waits.push_back({client.fd(), POLLIN, 0});
  for (bool busy = true; busy;) {
    if (::poll(waits.data(), waits.size(), 5000) <= 0) return std::fprintf(stderr, "no answer for five seconds\n"), 1;
    const bool more = Clock::now() < end;
    busy = false;
    for (std::size_t i = 0; i < clients.size(); ++i) {
      if (waits[i].revents) clients[i].hear(counts, more);
      busy |= clients[i].under_way > 0;
    }
  }
  const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("{\"answered\": %ld, \"failed\": %ld, \"wall_s\": %.6f}\n", counts.answered, counts.failed, wall);
}
