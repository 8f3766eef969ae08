// A fuzzer of the request reader and of a network thread's connections: bytes in any pieces, requests of both ways,
// clients that leave. Whatever comes, nothing may be held in the end.
//
// native/fuzz/run.py builds and runs it.
#include <cstdio>
#include <random>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "front/http1/http1_thread.h"

#include "client_world.h"
#include "drive.h"

namespace {

class World : public ClientWorld<Http1Thread, Http1Shared> {
 public:
  World() : ClientWorld(4, Keys(), std::string("too slow"), std::string("no descriptor")) {
    thread().serve(ServedModel(model(2, "texts", {-1}, "BYTES"), {}));
    thread().serve(ServedModel(model(3, "brain", {2}, "BF16"), {}));
  }

  void live(std::string_view data) {
    ClientWorld::live(data);
    bytes_.clear();
  }

 private:
  // It answers, pauses, gives the connection back or closes it.
  void hear() override {
    for (const Passed& message : passed()) {
      std::size_t& bytes = bytes_[message.connection];
      if (message.kind == Passed::kEnd) thread().close_soon(message.connection);
      if (message.kind != Passed::kData) continue;
      bytes += message.bytes.size();
      thread().write(message.connection, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
      switch (message.bytes.size() % 5) {
        case 0: thread().pause(message.connection, true), thread().pause(message.connection, false); break;
        case 1: thread().tell_when_sent(message.connection); break;
        case 2:
          message.bytes.size() % 2 ? thread().close_soon(message.connection) : thread().linger(message.connection);
          break;
        default: thread().take_back(message.connection, bytes, "HTTP/1.1 204 No Content\r\n\r\n");
      }
    }
  }

  std::unordered_map<ConnectionNumber, std::size_t> bytes_;  // that went the long way
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
  return "POST /v2/models/" + std::string(name) +
         "/infer HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + std::string(more) +
         "\r\n" + body;
}

const std::string kBody = R"({"inputs":[{"name":"IN","shape":[1,2],"datatype":"FP32","data":[1,2.5]}]})";
const std::string kBinary =
    R"({"inputs":[{"name":"IN","shape":[2,2],"datatype":"FP32","parameters":{"binary_data_size":16}}],"id":"x"})";
const std::string kTexts =
    R"({"inputs":[{"data":["a","\u00e9\n"],"name":"IN","shape":[1,2],"datatype":"BYTES"}],"more":null})";
const std::string kTwoTexts =
    R"({"inputs":[{"name":"IN","shape":[2,1],"datatype":"BYTES","parameters":{"binary_data_size":11,"x":1.5}}],"id":"\ud83d\ude00"})";
const std::string kTold = R"({"inputs":[{"name":"IN","shape":[3,1],"datatype":"BYTES","data":["a","bcd\u00e9",""]}]})";
const std::string kBrain =
    R"({"inputs":[{"name":"IN","shape":[1,2],"datatype":"BF16","parameters":{"binary_data_size":4}}],"parameters":{"binary_data_output":true}})";

const std::string kMany =
    R"({"inputs":[{"name":"IN","shape":[1,1000],"datatype":"FP32","parameters":{"binary_data_size":4000}}]})";
const std::string kHurried =
    R"({"parameters":{"timeout":1},"inputs":[{"name":"IN","shape":[1,1000],"datatype":"FP32","parameters":{"binary_data_size":4000}}]})";

std::string with_binary(std::string_view name, const std::string& json, const std::string& data) {
  return request(name, json + data, "Inference-Header-Content-Length: " + std::to_string(json.size()) + "\r\n");
}

std::string chunked(std::string_view name, const std::string& body, std::size_t size) {
  std::string whole =
      "POST /v2/models/" + std::string(name) + "/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  char length[24];
  for (std::size_t at = 0; at < body.size(); at += size) {
    const std::string part = body.substr(at, size);
    std::snprintf(length, sizeof length, "%zx\r\n", part.size());
    whole += length + part + "\r\n";
  }
  return whole + "0\r\n\r\n";
}

// As the server itself compresses.
std::string packed(const std::string& body, protocol::Coding coding) {
  std::string out;
  protocol::Deflater deflater(coding);
  if (!deflater.begin(body.size(), out)) return body;  // there is no zlib
  deflater.add(body);
  deflater.end(out);
  return out;
}

const std::vector<std::string> kSeeds = {
    request("fixed", kBody),
    request("open", kBody, "Connection: keep-alive\r\nX-API-Key: k\r\n"),
    request("open", kBinary + std::string(16, '\1'),
            "Inference-Header-Content-Length: " + std::to_string(kBinary.size()) + "\r\n"),
    request(
        "fixed",
        R"({"inputs":[{"name":"IN","shape":[1,2],"datatype":"FP32","data":[[1,2]]}],"parameters":{"priority":2,"application":"b"}})"),
    request("absent", kBody),
    request("fixed", kBody, "Host: y\r\n"),
    "POST /v2/models/fixed/infer HTTP/1.0\r\nHost: [::1]:80\r\nContent-Length: 0\r\n\r\n",
    "GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n",
    request("fixed", kBody, "Expect: 100-continue\r\n"),
    request("fixed", kBody, "Connection: close\r\nAccept-Encoding: gzip\r\n"),
    request("fixed", kBody,
            "X-Astrarium-Timeline: 1\r\nContent-Type: application/json; charset=x\r\nAccept-Encoding: deflate\r\n"),
    request("texts", kTexts),
    with_binary("texts", kTwoTexts, std::string("\1\0\0\0a\2\0\0\0\xff\xfe", 11)),
    request("told", kTold),
    with_binary("told", kTwoTexts, std::string("\1\0\0\0a\2\0\0\0bc", 11)),
    with_binary("brain", kBrain, "1234"),
    with_binary("open", kMany, std::string(4000, '\2')),
    with_binary("open", kHurried, std::string(4000, '\3')),
    chunked("open", kBody, 20),
    chunked("texts", kTexts, 1),
    request("fixed", packed(kBody, protocol::Coding::kGzip), "Content-Encoding: gzip\r\n"),
    request("texts", packed(kTexts, protocol::Coding::kDeflate),
            "Content-Encoding: deflate\r\nExpect: 100-continue\r\n"),
};

// Some requests one after the other, in pieces, with a few accidents.
std::string make_input(std::mt19937& random) {
  std::string whole;
  for (auto left = random() % 4 + 1; left > 0; --left) whole += kSeeds[random() % kSeeds.size()];
  const auto another = [&] { return "019-.eE\"\\{}[],: \r\n\tz\xff"[random() % 22]; };
  return World::pieces(with_accidents(std::move(whole), random, another), random);
}

}  // namespace
