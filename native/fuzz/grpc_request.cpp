// A fuzzer of HTTP/2, HPACK and messages of gRPC, and of a network thread's connections that speak them: bytes in any
// pieces, calls of both ways, clients that leave. Whatever comes, nothing may be held in the end.
//
// native/fuzz/run.py builds and runs it.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "front/grpc_thread.h"
#include "front/loopback.h"

#include "drive.h"

namespace {

using namespace astrarium;
using namespace astrarium::front;

#define MUST(condition) \
  if (!(condition)) std::fprintf(stderr, "broken: %s (line %d)\n", #condition, __LINE__), std::abort()

constexpr Time kHour = Time{3600} * 1'000'000'000;

express::Model model(int index, std::string name, express::Shape item) {
  const express::Datatype* type = express::datatype("FP32");
  return {index, std::move(name), "1", {{"IN", type, item}}, {{"OUT", type, item}}, 4, kHour, {{2, kHour}}};
}

// A network thread that takes its turns when it is told, with a loopback behind it.
class World {
 public:
  World()
      : memory_(std::size_t{1} << 20),
        exchange_(memory_.data(), memory_.size(), 2, 8, 1),
        loopback_(exchange_),
        shared_(std::make_shared<GrpcShared>(exchange_, HttpLimits{1024, 65536, 1 << 20, kHour, kHour, 0}, 65536 + 1024, Keys())),
        thread_(shared_, 0, ::eventfd(0, EFD_NONBLOCK)) {
    thread_.serve(ServedModel(model(0, "fixed", {2}), {"a", "b"}));
    thread_.serve(ServedModel(model(1, "open", {-1}), {}));
    thread_.withhold("absent", "not_ready");
  }

  // One client's life: each piece has its length before it; some say something else.
  void live(std::string_view data) {
    int ends[2];
    MUST(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    thread_.adopt(ends[0]);
    while (!data.empty()) {
      const auto what = static_cast<unsigned char>(data[0]);
      const std::size_t size = std::min<std::size_t>(data.size() - 1, std::size_t{what} * what / 8);
      [[maybe_unused]] const auto sent = ::send(ends[1], data.data() + 1, size, MSG_NOSIGNAL);
      data.remove_prefix(1 + size);
      thread_.turn(false);
      if (what % 3) end_calls();
      if (what % 5) hear();
      if (what % 7) drink(ends[1]);
      if (what % 31 == 0) thread_.drain();
      thread_.turn(false);
    }
    ::close(ends[1]);
    for (int i = 0; i < 4; ++i) end_calls(), thread_.turn(false), hear(), thread_.turn(false);
    MUST(shared_->connections.load() == 0);
    MUST(shared_->held.load() == 0);
    MUST(exchange_.admission.open() == 0);
    MUST(exchange_.arena.used() == 0);
  }

  std::int64_t accepted() const { return exchange_.origins[0]->tallies[0].accepted.get() + exchange_.origins[0]->tallies[1].accepted.get(); }

 private:
  void end_calls() {
    for (Pending* call : loopback_.pop()) {
      loopback_.echo(*call);
      loopback_.end(*call, call->rows == 3 ? Ending{Outcome::kFailed, Cause::kModelError, "%\n"} : Ending{});
    }
  }

  // As Python might: it answers, asks whether that was sent, takes messages or ends a call.
  void hear() {
    for (const PassedCall& one : shared_->long_way.take().first) {
      if (one.kind == PassedCall::kLeft || one.kind == PassedCall::kSent) continue;
      if (one.kind == PassedCall::kMessage) thread_.taken(one.connection, one.stream, one.bytes.size());
      switch (one.bytes.size() % 4) {
        case 0: thread_.finish(one.connection, one.stream, 5, "no such thing", {{"retry-after", "1"}}); break;
        case 1: thread_.tell_when_sent(one.connection, one.stream); break;
        default: thread_.send(one.connection, one.stream, one.bytes);
      }
      if (!one.streams) thread_.finish(one.connection, one.stream, 0, "", {});
    }
  }

  void drink(int fd) {
    char buffer[65536];
    while (::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) > 0) {
    }
  }

  std::vector<char> memory_;
  Exchange exchange_;
  Loopback loopback_;
  std::shared_ptr<GrpcShared> shared_;
  GrpcThread thread_;
};

World& world() {
  static World only;
  return only;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  world().live({reinterpret_cast<const char*>(data), size});
  return 0;
}

namespace {

void sized(std::string& out, int number, std::string_view data) {
  out += static_cast<char>(number << 3 | 2), out += static_cast<char>(data.size()), out += data;
}

std::string infer(std::string_view name, int rows, bool raw, std::string_view parameter = "") {
  std::string message, input, shape, contents;
  const std::string elements(static_cast<std::size_t>(8 * rows), '\1');
  shape += static_cast<char>(rows), shape += '\2';
  sized(contents, 6, elements);
  sized(input, 1, "IN"), sized(input, 2, "FP32"), sized(input, 3, shape);
  if (!raw) sized(input, 5, contents);
  sized(message, 1, name), sized(message, 3, "id");
  if (!parameter.empty()) {
    std::string entry;
    sized(entry, 1, parameter), sized(entry, 2, parameter == "application" ? "\x1a\1b" : "\x10\2"), sized(message, 4, entry);
  }
  sized(message, 5, input);
  if (raw) sized(message, 7, elements);
  return message;
}

std::string call(std::uint32_t stream, std::string_view path, const std::string& message, bool padded = false) {
  std::string block = "\x83\x86", out, data(1, '\0');
  append_field(block, ":path", path), append_field(block, "grpc-timeout", "9S");
  block += "\x40\x82\x49\x7f\x82\x49\x7f";  // a field that the table keeps
  append_head(out, block.size(), Frame::kHeaders, kEndHeaders, stream), out += block;
  append_number(data, static_cast<std::uint32_t>(message.size()), 4), data += message;
  if (padded) data = "\3" + data + "pad";
  append_head(out, data.size(), Frame::kData, kEndStream | (padded ? kPadded : 0), stream), out += data;
  return out;
}

constexpr std::string_view kInfer = "/inference.GRPCInferenceService/ModelInfer", kStreams = "/inference.GRPCInferenceService/ModelStreamInfer";

std::string frames(std::mt19937& random, std::uint32_t stream) {
  std::string out;
  switch (random() % 12) {
    case 0: return call(stream, kInfer, infer("fixed", 1, true));
    case 1: return call(stream, kInfer, infer("open", 2, false), true);
    case 2: return call(stream, kInfer, infer("fixed", 3, false, "application"));
    case 3: return call(stream, kInfer, infer("fixed", 4, true, "priority"));
    case 4: return call(stream, kInfer, infer("absent", 1, true));
    case 5: return call(stream, kStreams, infer("open", 1, true));
    case 6: return call(stream, "/inference.GRPCInferenceService/ServerLive", "");
    case 7: return append_ping(out, "12345678", random() % 2), out;
    case 8: return append_window(out, random() % 2 ? stream : 0, 1 + random() % 70000), out;
    case 9: return append_reset(out, stream, Http2Error::kCancel), out;
    case 10: return append_head(out, 6, Frame::kSettings, 0, 0), append_setting(out, static_cast<Setting>(random() % 7), random() % 70000), out;
    default: return call(stream, "/other", "x");
  }
}

// A client's greeting and some frames, in pieces, with a few accidents.
std::string made(std::mt19937& random) {
  std::string whole(kPreface);
  append_head(whole, 0, Frame::kSettings, 0, 0);
  std::uint32_t stream = 1;
  for (auto left = random() % 8 + 1; left > 0; --left, stream += random() % 8 ? 2 : 0) whole += frames(random, stream);
  for (auto left = random() % 4; left > 0; --left) {
    const std::size_t at = random() % 16 ? std::min(whole.size() - 1, kPreface.size() + random() % whole.size()) : random() % whole.size();
    switch (random() % 3) {
      case 0: whole[at] = static_cast<char>(random()); break;
      case 1: whole.erase(at, random() % 9); break;
      default: whole.insert(at, whole.substr(at, random() % 9));
    }
    if (whole.empty()) return whole;
  }
  std::string pieces;
  for (std::size_t at = 0; at < whole.size();) {
    const auto what = static_cast<unsigned char>(random() % 256);
    const std::size_t size = std::size_t{what} * what / 8;
    pieces += static_cast<char>(what);
    pieces += whole.substr(at, size);
    at += size;
  }
  return pieces;
}

}  // namespace
