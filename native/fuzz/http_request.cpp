// A fuzzer of the request reader and of a network thread's connections: bytes in any pieces, requests of both ways,
// clients that leave. Whatever comes, nothing may be held in the end.
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
#include <unordered_map>
#include <vector>

#include "front/loopback.h"
#include "front/network.h"

#include "drive.h"

namespace {

using namespace astrarium;
using namespace astrarium::front;

#define MUST(condition) \
  if (!(condition)) std::fprintf(stderr, "broken: %s (line %d)\n", #condition, __LINE__), std::abort()

constexpr Time kHour = Time{3600} * 1'000'000'000;

express::Model model(int index, std::string name, express::Shape item, std::string_view datatype = "FP32") {
  const express::Datatype* type = express::datatype(datatype);
  return {index, std::move(name), "1", {{"IN", type, item}}, {{"OUT", type, item}}, 4, kHour, {{2, kHour}}};
}

// A network thread that takes its turns when it is told, with a loopback behind it.
class World {
 public:
  World()
      : memory_(std::size_t{1} << 20),
        exchange_(memory_.data(), memory_.size(), 4, 8, 1),
        loopback_(exchange_),
        shared_(std::make_shared<NetworkShared>(exchange_, HttpLimits{1024, 65536, 1 << 20, kHour, kHour, 0}, Keys(), "too slow")),
        thread_(shared_, 0, ::eventfd(0, EFD_NONBLOCK)) {
    thread_.serve(ServedModel(model(0, "fixed", {2}), {"a", "b"}));
    thread_.serve(ServedModel(model(1, "open", {-1}), {}));
    thread_.serve(ServedModel(model(2, "texts", {-1}, "BYTES"), {}));
    thread_.serve(ServedModel(model(3, "brain", {2}, "BF16"), {}));
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
      thread_.turn(false);
    }
    ::close(ends[1]);
    for (int i = 0; i < 4; ++i) end_calls(), thread_.turn(false), hear(), thread_.turn(false);
    MUST(shared_->connections.load() == 0);
    MUST(shared_->held.load() == 0);
    MUST(exchange_.admission.open() == 0);
    MUST(exchange_.arena.used() == 0);
    passed_.clear();
  }

  std::int64_t accepted() const {
    std::int64_t sum = 0;
    for (const ModelTally& tally : exchange_.origins[0]->tallies) sum += tally.accepted.get();
    return sum;
  }

 private:
  void end_calls() {
    for (Pending* call : loopback_.pop()) {
      loopback_.echo(*call);
      loopback_.end(*call, {});
    }
  }

  // As Python might: it answers, pauses, gives the connection back or closes it.
  void hear() {
    for (const Passed& one : shared_->long_way.take().first) {
      std::size_t& bytes = passed_[one.connection];
      if (one.kind == Passed::kEnd) thread_.close_soon(one.connection);
      if (one.kind != Passed::kData) continue;
      bytes += one.bytes.size();
      thread_.write(one.connection, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
      switch (one.bytes.size() % 5) {
        case 0: thread_.pause(one.connection, true), thread_.pause(one.connection, false); break;
        case 1: thread_.tell_when_sent(one.connection); break;
        case 2: thread_.close_soon(one.connection); break;
        default: thread_.take_back(one.connection, bytes, "HTTP/1.1 204 No Content\r\n\r\n");
      }
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
  std::shared_ptr<NetworkShared> shared_;
  NetworkThread thread_;
  std::unordered_map<ConnectionNumber, std::size_t> passed_;
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

std::string request(std::string_view name, const std::string& body, std::string_view more = "") {
  return "POST /v2/models/" + std::string(name) + "/infer HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         std::string(more) + "\r\n" + body;
}

const std::string kBody = R"({"inputs":[{"name":"IN","shape":[1,2],"datatype":"FP32","data":[1,2.5]}]})";
const std::string kBinary = R"({"inputs":[{"name":"IN","shape":[2,2],"datatype":"FP32","parameters":{"binary_data_size":16}}],"id":"x"})";
const std::string kTexts = R"({"inputs":[{"data":["a","\u00e9\n"],"name":"IN","shape":[1,2],"datatype":"BYTES"}],"more":null})";
const std::string kTwoTexts = R"({"inputs":[{"name":"IN","shape":[2,1],"datatype":"BYTES","parameters":{"binary_data_size":11,"x":1.5}}],"id":"\ud83d\ude00"})";
const std::string kBrain =
    R"({"inputs":[{"name":"IN","shape":[1,2],"datatype":"BF16","parameters":{"binary_data_size":4}}],"parameters":{"binary_data_output":true}})";

std::string with_binary(std::string_view name, const std::string& json, const std::string& data) {
  return request(name, json + data, "Inference-Header-Content-Length: " + std::to_string(json.size()) + "\r\n");
}

std::string chunked(std::string_view name, const std::string& body, std::size_t size) {
  std::string whole = "POST /v2/models/" + std::string(name) + "/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  char length[24];
  for (std::size_t at = 0; at < body.size(); at += size) {
    const std::string part = body.substr(at, size);
    std::snprintf(length, sizeof length, "%zx\r\n", part.size());
    whole += length + part + "\r\n";
  }
  return whole + "0\r\n\r\n";
}

// As the server itself compresses.
std::string packed(const std::string& body, express::Coding coding) {
  std::string out;
  express::Deflater deflater(coding);
  if (!deflater.begin(body.size(), out)) return body;  // there is no zlib
  deflater.add(body);
  deflater.end(out);
  return out;
}

const std::vector<std::string> kSeeds = {
    request("fixed", kBody),
    request("open", kBody, "Connection: keep-alive\r\nX-API-Key: k\r\n"),
    request("open", kBinary + std::string(16, '\1'), "Inference-Header-Content-Length: " + std::to_string(kBinary.size()) + "\r\n"),
    request("fixed", R"({"inputs":[{"name":"IN","shape":[1,2],"datatype":"FP32","data":[[1,2]]}],"parameters":{"priority":2,"application":"b"}})"),
    request("absent", kBody),
    "GET /v2 HTTP/1.1\r\n\r\n",
    request("fixed", kBody, "Expect: 100-continue\r\n"),
    request("fixed", kBody, "Connection: close\r\nAccept-Encoding: gzip\r\n"),
    request("fixed", kBody, "X-Astrarium-Timeline: 1\r\nContent-Type: application/json; charset=x\r\nAccept-Encoding: deflate\r\n"),
    request("texts", kTexts),
    with_binary("texts", kTwoTexts, std::string("\1\0\0\0a\2\0\0\0\xff\xfe", 11)),
    with_binary("brain", kBrain, "1234"),
    chunked("open", kBody, 20),
    chunked("texts", kTexts, 1),
    request("fixed", packed(kBody, express::Coding::kGzip), "Content-Encoding: gzip\r\n"),
    request("texts", packed(kTexts, express::Coding::kDeflate), "Content-Encoding: deflate\r\nExpect: 100-continue\r\n"),
};

// Some requests one after the other, in pieces, with a few accidents.
std::string made(std::mt19937& random) {
  std::string whole;
  for (auto left = random() % 4 + 1; left > 0; --left) whole += kSeeds[random() % kSeeds.size()];
  for (auto left = random() % 4; left > 0; --left) {
    const std::size_t at = random() % whole.size();
    switch (random() % 3) {
      case 0: whole[at] = "019-.eE\"\\{}[],: \r\n\tz\xff"[random() % 22]; break;
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
