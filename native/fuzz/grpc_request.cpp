// A fuzzer of HTTP/2, HPACK and messages of gRPC, and of a network thread's connections that speak them: bytes in any
// pieces, calls of both ways, clients that leave. Whatever comes, nothing may be held in the end.
//
// native/fuzz/run.py builds and runs it.
#include <random>
#include <string>
#include <string_view>

#include "front/grpc/grpc_thread.h"

#include "client_world.h"
#include "drive.h"

namespace {

class World : public ClientWorld<GrpcThread, GrpcShared> {
 public:
  World() : ClientWorld(2, std::size_t{65536 + 1024}, Keys()) {}

 private:
  void happen(unsigned char what) override {
    ClientWorld::happen(what);
    if (what % 31 == 0) thread().drain();
  }

  void must_be_empty() override {
    MUST(shared().heads.load() == 0);
    MUST(shared().long_calls.load() == 0);
  }

  Ending ending(const ClientTicket& call) override {
    return call.rows == 3 ? Ending{Outcome::kFailed, Cause::kModelError, "%\n"} : Ending{};
  }

  // It answers, asks whether that was sent, takes messages or ends a call.
  void hear() override {
    for (const PassedCall& call : passed()) {
      if (call.kind == PassedCall::kCall) shared().forget_call(call.metadata.size());
      if (call.kind == PassedCall::kLeft || call.kind == PassedCall::kSent) continue;
      if (call.kind == PassedCall::kMessage) thread().taken(call.connection, call.stream, call.bytes.size());
      switch (call.bytes.size() % 4) {
        case 0: thread().finish(call.connection, call.stream, 5, "no such thing", {{"retry-after", "1"}}); break;
        case 1: thread().tell_when_sent(call.connection, call.stream); break;
        default: thread().send(call.connection, call.stream, call.bytes);
      }
      if (!call.streams) thread().finish(call.connection, call.stream, 0, "", {});
    }
  }
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
  out += static_cast<char>(number << 3 | 2);
  out += static_cast<char>(data.size());
  out += data;
}

std::string infer(std::string_view name, int rows, bool raw, std::string_view parameter = "") {
  std::string message, input, shape, contents;
  const std::string elements(static_cast<std::size_t>(8 * rows), '\1');
  shape += static_cast<char>(rows);
  shape += '\2';
  sized(contents, 6, elements);
  sized(input, 1, "IN");
  sized(input, 2, "FP32");
  sized(input, 3, shape);
  if (!raw) sized(input, 5, contents);
  sized(message, 1, name);
  sized(message, 3, "id");
  if (!parameter.empty()) {
    std::string entry;
    sized(entry, 1, parameter);
    sized(entry, 2, parameter == "application" ? "\x1a\1b" : "\x10\2");
    sized(message, 4, entry);
  }
  sized(message, 5, input);
  if (raw) sized(message, 7, elements);
  return message;
}

// Texts of one byte.
std::string tell(int rows, bool raw) {
  std::string message, input, shape, contents, elements;
  shape += static_cast<char>(rows);
  shape += '\1';
  for (int row = 0; row < rows; ++row) {
    sized(contents, 8, "t");
    elements += std::string("\1\0\0\0t", 5);
  }
  sized(input, 1, "IN");
  sized(input, 2, "BYTES");
  sized(input, 3, shape);
  if (!raw) sized(input, 5, contents);
  sized(message, 1, "told");
  sized(message, 5, input);
  if (raw) sized(message, 7, elements);
  return message;
}

std::string call(std::uint32_t stream, std::string_view path, const std::string& message, bool padded = false) {
  std::string block = "\x83\x86", out, data(1, '\0');
  append_field(block, ":path", path);
  append_field(block, "content-type", "application/grpc");
  append_field(block, "grpc-timeout", "9S");
  block += "\x40\x82\x49\x7f\x82\x49\x7f";  // a field that the table keeps
  append_head(out, block.size(), Frame::kHeaders, kEndHeaders, stream);
  out += block;
  append_number(data, static_cast<std::uint32_t>(message.size()), 4);
  data += message;
  if (padded) data = "\3" + data + "pad";
  append_head(out, data.size(), Frame::kData, kEndStream | (padded ? kPadded : 0), stream);
  out += data;
  return out;
}

constexpr std::string_view kInfer = "/inference.GRPCInferenceService/ModelInfer",
                           kStreams = "/inference.GRPCInferenceService/ModelStreamInfer";

// A frame of any kind, about right: its length, its stream and its flags may be wrong.
std::string odd_frame(std::mt19937& random, std::uint32_t stream) {
  constexpr std::size_t kSizes[] = {0, 1, 4, 5, 6, 8, 12};
  std::string out, body(kSizes[random() % 7], static_cast<char>(random() % 3));
  const auto on = random() % 4 ? stream - 2 * (random() % 3) : 0;
  append_head(out, body.size(), static_cast<Frame>(random() % 11), static_cast<unsigned>(random()), on);
  return out + body;
}

// A head in two frames, with fields that may be malformed; trailers, where the stream has a head already.
std::string odd_head(std::mt19937& random, std::uint32_t stream) {
  constexpr std::pair<std::string_view, std::string_view> kFields[] = {
      {":path", kInfer},       {":method", "POST"},     {":scheme", "http"}, {":authority", "a"},
      {"host", "a"},           {"content-length", "9"}, {"te", "trailers"},  {"content-type", "application/grpc"},
      {"connection", "close"}, {"grpc-timeout", "0n"},  {"X", " "},          {"authorization", "Bearer k"}};
  std::string block, out;
  for (auto left = random() % 9; left > 0; --left) {
    const auto& [name, value] = kFields[random() % std::size(kFields)];
    append_field(block, name, value);
    if (random() % 2) block[block.size() - name.size() - value.size() - 3] = 0x40;  // the table keeps it
    if (random() % 4 == 0) block += '\xbe';
  }
  const std::size_t cut = random() % (block.size() + 1);
  append_head(out, cut, Frame::kHeaders, random() % 2 ? kEndStream : 0, stream);
  out += block.substr(0, cut);
  append_head(out, block.size() - cut, Frame::kContinuation, kEndHeaders, stream);
  out += block.substr(cut);
  return out;
}

std::string frames(std::mt19937& random, std::uint32_t stream) {
  std::string out;
  switch (random() % 18) {
    case 12: return odd_frame(random, stream);
    case 13: return odd_head(random, stream);
    case 14: return call(stream, kInfer, infer("fixed", 1, true)) + odd_head(random, stream);
    case 15:
      return call(stream, "/inference.GRPCInferenceService/ServerLive", "") +
             (append_reset(out, stream, Http2Error::kCancel), out);
    case 16: return call(stream, kInfer, tell(1, true));
    case 17: return call(stream, kInfer, tell(3, false));
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
    case 10:
      return append_head(out, 6, Frame::kSettings, 0, 0),
             append_setting(out, static_cast<Setting>(random() % 7), random() % 70000), out;
    default: return call(stream, "/other", "x");
  }
}

// A client's greeting and some frames, in pieces, with a few accidents.
std::string make_input(std::mt19937& random) {
  std::string whole(kPreface);
  append_head(whole, 0, Frame::kSettings, 0, 0);
  std::uint32_t stream = 1;
  for (auto left = random() % 8 + 1; left > 0; --left, stream += random() % 8 ? 2 : 0) whole += frames(random, stream);
  const auto another = [&] { return static_cast<char>(random()); };
  return World::pieces(with_accidents(std::move(whole), random, another, kPreface.size()), random);
}

}  // namespace
