// A call over gRPC is a stream of HTTP/2: its metadata, its messages as they arrive, and its status in the end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "front/calls/call_tickets.h"
#include "front/http2/connection.h"
#include "front/long_way.h"
#include "protocol/trim.h"

namespace astrarium::front {

struct GrpcConnection;

// A piece of the metadata.
struct Place {
  std::size_t at = 0, size = 0;
};

struct GrpcStream : Http2Stream, Caller {
  enum Mode {
    kInfer,   // one message, which may be a plain call
    kUnary,   // one message, for Python
    kStream,  // messages one by one, for Python
  };

  GrpcConnection* connection = nullptr;
  Mode mode = kStream;
  bool is_post = false, is_grpc = false;  // what its head says
  bool is_long = false;                   // Python has it
  bool has_message = false;               // the one
  bool tell_sent = false;                 // Python wants to hear when all is sent
  std::string metadata;                   // what we read of it: names and values, each before a zero
  Place path, timeout, authorization, api_key, application, timeline, encoding;
  std::size_t cost = 0;          // bytes that it is counted for, head and all, while it is open
  std::uint64_t passed = 0;      // the number of the call on its way to Python
  Time received = 0, since = 0;  // when the head came, and the message that arrives began to
  ByteQueue in;                  // part of a message, with its prefix
  std::size_t untaken = 0;       // bytes of messages that Python has not taken, with what each one costs

  std::string_view view(const Place& place) const { return std::string_view(metadata).substr(place.at, place.size); }

  // Makes it as new, and keeps the memory that most metadata needs.
  void clear() {
    constexpr std::size_t kKept = 1024;
    std::string kept = std::move(metadata);
    protocol::trim(kept, kKept);
    std::destroy_at(this);
    std::construct_at(this);
    metadata = std::move(kept);
  }
};

using GrpcHttp2 = Http2Connection<GrpcStream>;

// What Python hears of calls that go the long way.
struct PassedCall {
  enum Kind {
    kCall,     // metadata, and if it has but one message that message too
    kMessage,  // another one
    kEnd,      // the client sends no more messages
    kSent,     // the client has taken all that it was sent
    kLeft,     // the client wants no answer any more
  };
  Kind kind;
  ConnectionNumber connection;
  std::uint32_t stream;
  std::string bytes = {};
  bool compressed = false, streams = false;
  std::string metadata = {}, peer = {}, why = {};
  Time received = 0, patience = 0;
  std::int64_t user = RegionOwner::kUnknown;  // of this machine

  std::size_t cost() const {
    return sizeof *this + bytes.size() + metadata.size() + peer.size() + why.size();
  }  // bytes of memory
  void forget() { bytes = {}, metadata = {}, peer = {}, why = {}; }
};

// What a call costs in Python while it goes the long way, with all its metadata, and each message that waits there:
// bytes, rather more than less.
inline std::size_t call_cost(std::size_t metadata) { return 4096 + 16 * metadata; }
inline std::size_t message_cost(std::size_t bytes) { return 512 + bytes; }

// Nanoseconds that a grpc-timeout says, at least one; nothing where it is none.
inline std::optional<Time> timeout_of(std::string_view text) {
  constexpr std::string_view kUnits = "numSMH";
  constexpr Time kSizes[] = {1, 1000, 1'000'000, 1'000'000'000, 60'000'000'000, 3'600'000'000'000};
  constexpr std::size_t kMostDigits = 8;
  if (text.size() < 2 || text.size() > kMostDigits + 1) return std::nullopt;
  const auto unit = kUnits.find(text.back());
  std::size_t number = 0;
  if (unit == std::string_view::npos || !protocol::whole_number(text.substr(0, text.size() - 1), number))
    return std::nullopt;
  constexpr Time kLongest = Time{1'000'000'000} * 1'000'000'000;  // FOREVER in astrarium.core.quantities
  if (number > static_cast<std::size_t>(kLongest / kSizes[unit])) return kLongest;
  return std::max<Time>(1, static_cast<Time>(number) * kSizes[unit]);  // no time at all is over when it begins
}

// application/grpc, and what may come after that.
inline bool is_grpc_type(std::string_view type) {
  constexpr std::string_view kType = "application/grpc";
  return type.substr(0, kType.size()) == kType &&
         (type.size() == kType.size() || type[kType.size()] == '+' || type[kType.size()] == ';');
}

// What we answer with.

inline const std::string& answer_head() {
  static const std::string head = [] {
    std::string block = "\x88";  // :status 200
    append_field(block, "content-type", "application/grpc");
    append_field(block, "grpc-accept-encoding", "identity, deflate, gzip");
    return block;
  }();
  return head;
}

// Any text in the characters that a header may have.
inline std::string percent_encoded(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (c >= ' ' && c <= '~' && c != '%') {
      encoded += c;
      continue;
    }
    char code[4];
    std::snprintf(code, sizeof code, "%%%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
    encoded += code;
  }
  return encoded;
}

// The head of an answer that is no HTTP 200: the request is no call.
inline std::string refusal_head(std::string_view http_status) {
  std::string block;
  append_field(block, ":status", http_status);
  if (http_status == "405") append_field(block, "allow", "POST");
  append_field(block, "content-type", "application/grpc");
  return block;
}

inline void append_status(std::string& block, int status, std::string_view details) {
  append_field(block, "grpc-status", std::to_string(status));
  constexpr std::size_t kMost = 4096;  // bytes: clients take no more, and would tell of that in its place
  if (!details.empty()) append_field(block, "grpc-message", percent_encoded(details.substr(0, kMost)));
}

inline std::string message_prefix(std::size_t size) {
  std::string prefix(1, '\0');
  append_number(prefix, static_cast<std::uint32_t>(size), 4);
  return prefix;
}

}  // namespace astrarium::front
