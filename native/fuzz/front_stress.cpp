// A stress of the front's threads: two network threads, a loopback, clients that ask and leave, models that come and
// go, a reader of what is counted, and one that answers the long way. Bounded by its number of requests.
//
// native/fuzz/run.py builds and runs it.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "front/loopback.h"
#include "front/network.h"

using namespace astrarium;
using namespace astrarium::front;

namespace {

constexpr int kThreads = 2, kClients = 4;
constexpr Time kHour = Time{3600} * 1'000'000'000;

#define MUST(condition) \
  if (!(condition)) std::perror(#condition), std::abort()

int listener(int& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1;
  MUST(::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t size = sizeof address;
  MUST(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(fd, 64) == 0);
  MUST(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port = ntohs(address.sin_port);
  return fd;
}

int connected(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  MUST(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

// Whether there was an answer; all of them are short.
bool answered(int fd) {
  std::string got;
  char buffer[4096];
  while (true) {
    const ssize_t size = ::recv(fd, buffer, sizeof buffer, 0);
    if (size <= 0) return false;
    got.append(buffer, static_cast<std::size_t>(size));
    const auto end = got.find("\r\n\r\n"), length = got.find("content-length: ");
    if (end != std::string::npos && got.size() >= end + 4 + std::strtoul(got.c_str() + length + 16, nullptr, 10)) return true;
  }
}

const std::string kBody = R"({"inputs":[{"name":"IN","shape":[1,2],"datatype":"FP32","data":[1,2.5]}]})";
const std::string kPlain = "POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: " + std::to_string(kBody.size()) + "\r\n\r\n" + kBody;
const std::string kOther = "GET /v2 HTTP/1.1\r\n\r\n";

// Asks, and now and then leaves without waiting or in the middle of a request.
void client(int port, int number, int requests, std::atomic<long>& answers) {
  int fd = connected(port);
  for (int i = 0; i < requests; ++i) {
    const std::string& asked = (i + number) % 5 ? kPlain : kOther;
    const bool leaves = i % 17 == number;
    const std::size_t size = leaves && i % 2 ? asked.size() / 2 : asked.size();
    MUST(::send(fd, asked.data(), size, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
    if (!leaves && answered(fd)) {
      ++answers;
      continue;
    }
    ::close(fd);
    fd = connected(port);
  }
  ::close(fd);
}

using Threads = std::vector<std::unique_ptr<NetworkThread>>;

// As Python answers the long way.
void hear(NetworkShared& shared, Threads& threads, const std::atomic<bool>& stopped) {
  std::unordered_map<ConnectionNumber, std::size_t> passed;
  while (!stopped.load()) {
    pollfd waits{shared.long_way.fd(), POLLIN, 0};
    ::poll(&waits, 1, 10);
    for (const Passed& one : shared.long_way.take().first) {
      NetworkThread& thread = *threads[one.connection >> 48];
      const ConnectionNumber number = one.connection;
      if (one.kind == Passed::kLost) passed.erase(number);
      if (one.kind == Passed::kEnd) thread.post([&thread, number] { thread.close_soon(number); });
      if (one.kind != Passed::kData) continue;
      const std::size_t bytes = passed[number] += one.bytes.size();
      thread.post([&thread, number, bytes] {
        thread.take_back(number, bytes, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
      });
    }
  }
}

void change_models(Exchange& exchange, Threads& threads, const ServedModel& model, const std::atomic<bool>& stopped) {
  std::int64_t next = 0;
  for (int i = 0; !stopped.load(); ++i) {
    for (auto& thread : threads) {
      NetworkThread* one = thread.get();
      if (i % 2) one->post([one, model] { one->serve(model); });
      else one->post([one] { one->withhold("echo", "not_ready"); });
    }
    for (const auto& origin : exchange.origins) {
      origin->last_calls.since(next);
      if (origin->tallies[0].accepted.get() < 0) std::abort();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace

int main(int count, char** words) {
  const int requests = count > 1 ? std::atoi(words[1]) : 1000;
  std::vector<char> memory(std::size_t{1} << 20);
  Exchange exchange(memory.data(), memory.size(), 1, 64, kThreads);
  Loopback loopback(exchange);
  loopback.start();
  auto shared = std::make_shared<NetworkShared>(exchange, HttpLimits{65536, 1 << 20, 1 << 20, kHour, kHour, 0}, Keys(), "");
  const express::Datatype* type = express::datatype("FP32");
  const ServedModel model({0, "echo", "1", {{"IN", type, {2}}}, {{"OUT", type, {2}}}, 4, kHour, {}}, {});
  int port = 0;
  Threads threads;
  for (int i = 0; i < kThreads; ++i) threads.push_back(std::make_unique<NetworkThread>(shared, i, listener(port)));
  for (auto& thread : threads) {
    thread->post([one = thread.get(), model] { one->serve(model); });
    thread->start();
  }
  std::atomic<bool> stopped = false;
  std::atomic<long> answers = 0;
  std::thread hears([&] { hear(*shared, threads, stopped); }), changes([&] { change_models(exchange, threads, model, stopped); });
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) clients.emplace_back([&, i] { client(port, i, requests, answers); });
  for (std::thread& one : clients) one.join();
  while (exchange.admission.open() || shared->connections.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stopped = true;
  hears.join(), changes.join();
  for (auto& thread : threads) thread->stop();
  loopback.stop();
  MUST(exchange.arena.used() == 0 && shared->held.load() == 0);
  const long calls = exchange.origins[0]->tallies[0].accepted.get() + exchange.origins[1]->tallies[0].accepted.get();
  std::printf("%ld answers, %ld calls of the short way\n", answers.load(), calls);
}
