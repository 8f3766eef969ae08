// A stress of the front's threads: two network threads for HTTP and two for gRPC, a loopback, clients that ask and
// leave, models that come and go, threads that tokenize, a reader of what is counted, and one that answers the long
// way. Bounded by its number of requests.
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

#include "front/grpc/grpc_thread.h"
#include "front/http1/http1_thread.h"
#include "testing/loopback.h"

#include "must.h"

using namespace astrarium;
using namespace astrarium::front;

namespace {

constexpr int kThreads = 2, kClients = 4;
constexpr Time kHour = Time{3600} * 1'000'000'000;

int listener(int& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1;
  MUST(::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
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
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
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
    if (end != std::string::npos && got.size() >= end + 4 + std::strtoul(got.c_str() + length + 16, nullptr, 10))
      return true;
  }
}

const std::string kBody = R"({"inputs":[{"name":"IN","shape":[1,2],"datatype":"FP32","data":[1,2.5]}]})";
const std::string kPlain =
    "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(kBody.size()) + "\r\n\r\n" +
    kBody;
const std::string kTexts = R"({"inputs":[{"name":"IN","shape":[2,1],"datatype":"BYTES","data":["ab","c"]}]})";
const std::string kTold =
    "POST /v2/models/told/infer HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(kTexts.size()) + "\r\n\r\n" +
    kTexts;
const std::string kOther = "GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n";

// Asks, and now and then leaves without waiting or in the middle of a request.
void client(int port, int number, int requests, std::atomic<long>& answers) {
  int fd = connected(port);
  for (int i = 0; i < requests; ++i) {
    const int kind = (i + number) % 5;
    const std::string& request = kind == 0 ? kOther : kind < 3 ? kTold : kPlain;
    const bool leaves = i % 17 == number;
    const std::size_t size = leaves && i % 2 ? request.size() / 2 : request.size();
    MUST(::send(fd, request.data(), size, MSG_NOSIGNAL) == static_cast<ssize_t>(size));
    if (!leaves && answered(fd)) {
      ++answers;
      continue;
    }
    ::close(fd);
    fd = connected(port);
  }
  ::close(fd);
}

// gRPC.

const std::string kMessage =
    std::string("\x0a\4echo\x2a\x0e\x0a\2IN\x12\4FP32\x1a\2\1\2\x3a\x08", 24) + std::string(8, '\1');

std::string grpc_call(std::uint32_t stream, std::string_view path) {
  std::string block = "\x83\x86", out, data = message_prefix(kMessage.size()) + kMessage;
  append_field(block, ":path", path);
  append_field(block, "content-type", "application/grpc");
  append_head(out, block.size(), Frame::kHeaders, kEndHeaders, stream);
  out += block;
  append_head(out, data.size(), Frame::kData, kEndStream, stream);
  out += data;
  return out;
}

// Until a stream has ended.
bool grpc_answered(int fd, std::string& got, std::uint32_t stream) {
  char buffer[4096];
  while (true) {
    while (got.size() >= kFrameHead) {
      const FrameHead head = FrameHead::read(got);
      if (got.size() < kFrameHead + head.size) break;
      got.erase(0, kFrameHead + head.size);
      if (head.stream == stream && head.type == Frame::kHeaders && head.flags & kEndStream) return true;
    }
    const ssize_t size = ::recv(fd, buffer, sizeof buffer, 0);
    if (size <= 0) return false;
    got.append(buffer, static_cast<std::size_t>(size));
  }
}

// Asks, and now and then resets a call or leaves.
void grpc_client(int port, int number, int requests, std::atomic<long>& answers) {
  int fd = -1;
  std::uint32_t stream = 1;
  std::string got;
  for (int i = 0; i < requests; ++i, stream += 2) {
    std::string request;
    if (fd < 0) {
      fd = connected(port);
      stream = 1;
      got.clear();
      request = kPreface;
      append_head(request, 0, Frame::kSettings, 0, 0);
    }
    const bool short_way = (i + number) % 5, leaves = i % 17 == number, resets = i % 7 == number;
    request += grpc_call(stream, short_way ? "/inference.GRPCInferenceService/ModelInfer"
                                           : "/inference.GRPCInferenceService/ServerLive");
    if (resets) append_reset(request, stream, Http2Error::kCancel);
    MUST(::send(fd, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()));
    if (leaves) ::close(std::exchange(fd, -1));
    else if (!resets && grpc_answered(fd, got, stream)) ++answers;
  }
  if (fd >= 0) ::close(fd);
}

using GrpcThreads = std::vector<std::unique_ptr<GrpcThread>>;

// As Python answers calls.
void hear_calls(GrpcShared& shared, GrpcThreads& threads, const std::atomic<bool>& stopped) {
  while (!stopped.load()) {
    pollfd waits{shared.long_way.fd(), POLLIN, 0};
    ::poll(&waits, 1, 10);
    for (const PassedCall& call : shared.long_way.take().first) {
      if (call.kind == PassedCall::kCall) shared.forget_call(call.metadata.size());
      if (call.kind != PassedCall::kCall) continue;
      GrpcThread& thread = *threads[(call.connection >> 48) - kThreads];
      thread.post([&thread, number = call.connection, stream = call.stream] {
        thread.send(number, stream, "live");
        thread.finish(number, stream, 0, "", {});
      });
    }
  }
}

// HTTP.

using Threads = std::vector<std::unique_ptr<Http1Thread>>;

// As Python answers the long way.
void hear(Http1Shared& shared, Threads& threads, const std::atomic<bool>& stopped) {
  std::unordered_map<ConnectionNumber, std::size_t> passed;
  while (!stopped.load()) {
    pollfd waits{shared.long_way.fd(), POLLIN, 0};
    ::poll(&waits, 1, 10);
    for (const Passed& message : shared.long_way.take().first) {
      Http1Thread& thread = *threads[message.connection >> 48];
      const ConnectionNumber number = message.connection;
      if (message.kind == Passed::kLost) passed.erase(number);
      if (message.kind == Passed::kEnd) thread.post([&thread, number] { thread.close_soon(number); });
      if (message.kind != Passed::kData) continue;
      const std::size_t bytes = passed[number] += message.bytes.size();
      thread.post([&thread, number, bytes] {
        thread.take_back(number, bytes, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
      });
    }
  }
}

// A token for each text, or a refusal.
void tokenize(TextQueue& queue) {
  for (long number = 0; auto batch = queue.take(TextQueue::kAtOnce, monotonic_ns); ++number) {
    Tokens tokens;
    tokens.inputs = {{number}};
    if (number % 7 == 0) tokens = Tokens::refused(Fault::kClient, "no tokens");
    const std::size_t count = batch->texts.size();
    queue.give(std::move(*batch), std::vector(count, tokens));
  }
}

void change_models(Exchange& exchange, Threads& threads, const ServedModel& model, const std::atomic<bool>& stopped) {
  std::int64_t next = 0;
  for (int i = 0; !stopped.load(); ++i) {
    for (auto& thread : threads) {
      Http1Thread* http1 = thread.get();
      if (i % 2) http1->post([http1, model] { http1->serve(model); });
      else http1->post([http1] { http1->withhold("echo", "not_ready"); });
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
  const int requests = count > 1 ? static_cast<int>(std::strtol(words[1], nullptr, 10)) : 1000;
  std::vector<char> memory(std::size_t{1} << 20);
  Exchange exchange(memory.data(), memory.size(), 2, 64, std::size_t{2} * kThreads);
  Loopback loopback(exchange);
  loopback.start();
  auto shared =
      std::make_shared<Http1Shared>(exchange, HttpLimits{65536, 1 << 20, 1 << 20, kHour, kHour, 0}, Keys(), "", "");
  const protocol::Datatype* type = protocol::datatype("FP32");
  const ServedModel model({0, "echo", "1", {{"IN", type, {2}}}, {{"OUT", type, {2}}}, 4, kHour, {}}, {});
  protocol::Model texts{1, "told", "1", {{"IN", protocol::datatype("BYTES"), {1}}}, {{"OUT", type, {1}}}, 4, kHour, {}};
  const ServedModel told(std::move(texts), {}, std::nullopt,
                         TokenInputs{0, {{"tokens", protocol::datatype("INT64"), {-1}}}});
  int port = 0;
  Threads threads;
  for (int i = 0; i < kThreads; ++i) threads.push_back(std::make_unique<Http1Thread>(shared, i, listener(port)));
  for (auto& thread : threads) {
    thread->post([http1 = thread.get(), model, told] {
      http1->serve(model);
      http1->serve(told);
    });
    thread->start();
  }
  auto grpc = std::make_shared<GrpcShared>(exchange, shared->limits, 1 << 20, Keys());
  int grpc_port = 0;
  GrpcThreads grpc_threads;
  for (int i = 0; i < kThreads; ++i)
    grpc_threads.push_back(std::make_unique<GrpcThread>(grpc, kThreads + i, listener(grpc_port)));
  for (auto& thread : grpc_threads) {
    thread->post([grpc_thread = thread.get(), model] { grpc_thread->serve(model); });
    thread->start();
  }
  std::atomic<bool> stopped = false;
  std::atomic<long> answers = 0;
  std::thread hears_calls([&] { hear_calls(*grpc, grpc_threads, stopped); });
  std::thread hears([&] { hear(*shared, threads, stopped); }),
      changes([&] { change_models(exchange, threads, model, stopped); });
  std::thread tokenizes([&] { tokenize(exchange.texts); }), tokenizes_too([&] { tokenize(exchange.texts); });
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) clients.emplace_back([&, i] { client(port, i, requests, answers); });
  for (int i = 0; i < kClients; ++i) clients.emplace_back([&, i] { grpc_client(grpc_port, i, requests, answers); });
  for (std::thread& client_thread : clients) client_thread.join();
  while (exchange.admission.open() || shared->connections.load() || grpc->connections.load())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stopped = true;
  exchange.texts.close();
  tokenizes.join();
  tokenizes_too.join();
  hears.join();
  changes.join();
  hears_calls.join();
  for (auto& thread : threads) thread->stop();
  for (auto& thread : grpc_threads) thread->stop();
  loopback.stop();
  MUST(exchange.arena.used() == 0 && shared->held.load() == 0 && grpc->held.load() == 0 && grpc->heads.load() == 0 &&
       grpc->long_calls.load() == 0);
  long calls = 0;
  for (const auto& origin : exchange.origins)
    for (const ModelTally& tally : origin->tallies) calls += tally.accepted.get();
  std::printf("%ld answers, %ld calls of the short way\n", answers.load(), calls);
}
