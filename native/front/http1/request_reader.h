// What the bytes that a client has sent are, from the first one on: part of a plain call, a whole one, or something
// that goes the long way.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "front/keys.h"
#include "protocol/chunks.h"
#include "protocol/plain_calls.h"
#include "protocol/trim.h"

namespace astrarium::front {

struct Reading {
  enum State { kPart, kWhole, kOther };
  State state;
  std::size_t size = 0;  // of a whole request; of a part: it is of no use to look again before so many bytes are here
  std::string_view why = {};  // another goes the long way
  bool expects = false;       // its client waits for 100 Continue
  std::size_t before = 0;     // bytes before the tensors of a part, if those are all that is missing then
};

class RequestReader {
 public:
  RequestReader(const protocol::PlainCalls& plain_calls, const Keys& keys, std::size_t largest_head)
      : plain_calls_(plain_calls), keys_(keys), largest_head_(largest_head) {}

  // Fills *call* from a whole request; the call refers to the request and to this reader until the next one is read.
  Reading read(std::string_view data, protocol::Call& call) {
    std::string_view why;
    const auto request = plain_calls_.read_head(data, why);
    if (!request) return may_become_plain(data, why) ? part(data.size() + 1) : other(why);
    const auto key = keys_.find(request->head.authorization, request->head.api_key);
    if (!key) return other("key");  // who shows no key has no body kept either
    std::string_view body;
    Reading reading = framed(data, request->head, body);
    reading.expects = request->head.expects;
    reading.before = request->head.size + request->head.json.value_or(0);
    if (reading.state != Reading::kWhole) return reading;
    if (!unpack(request->head, body)) return other("content-encoding");
    call.clear();
    call.key = *key;
    why = plain_calls_.fill(call, *request, body);
    return why.empty() ? reading : other(why);
  }

  // Fills *call* from the beginning of a request whose tensors are on their way, as if they lay in *area*, which nobody
  // reads. Returns how many bytes come before them; 0 where more must be seen to say what the request is.
  std::size_t preview(std::string_view data, std::string_view area, protocol::Call& call) {
    std::string_view why;
    const auto request = plain_calls_.read_head(data, why);
    if (!request || !request->head.json || !tensors_follow(*request) ||
        data.size() < request->head.size + *request->head.json)
      return 0;
    const std::size_t json = *request->head.json, binary = request->head.body - std::min(json, request->head.body);
    if (binary == 0 || binary > area.size()) return 0;
    call.clear();
    why = plain_calls_.fill(call, *request, data.substr(request->head.size, json), area.substr(0, binary));
    return why.empty() ? request->head.size + json : 0;
  }

 private:
  // Whether nobody has to look at the bytes of tensors, and they come as they are.
  static bool tensors_follow(const protocol::PlainRequest& request) {
    const auto varies = [](const protocol::Spec& input) { return input.type->kind == protocol::Kind::kBytes; };
    const auto& inputs = request.model->inputs;
    return !request.head.chunked && !request.head.expects && request.head.coded == protocol::Coding::kNone &&
           std::none_of(inputs.begin(), inputs.end(), varies);
  }

  // Inflated bytes: to make more takes so long (10 ms and more) that the long way does it, in a thread.
  static constexpr std::size_t kMostInflated = 4 << 20;
  static constexpr std::size_t kKept = 1 << 16;  // bytes: what one large body needed is not kept for small ones

  static Reading part(std::size_t least) { return {Reading::kPart, least}; }
  static Reading other(std::string_view why) { return {Reading::kOther, 0, why}; }

  // Where the request ends, and its body.
  Reading framed(std::string_view data, const protocol::Head& head, std::string_view& body) {
    const std::string_view rest = data.substr(head.size);
    if (head.chunked) return from_chunks(rest, head.size, body);
    if (rest.size() < head.body) return part(head.size + head.body);
    body = rest.substr(0, head.body);
    return {Reading::kWhole, head.size + head.body};
  }

  Reading from_chunks(std::string_view rest, std::size_t head, std::string_view& body) {
    const auto state = chunks_.find(rest, plain_calls_.largest_body());
    if (state == protocol::Chunks::kPart) return part(head + chunks_.need);
    if (state == protocol::Chunks::kOther) return other("transfer-encoding");
    protocol::trim(joined_, kKept);
    chunks_.join(joined_);
    body = joined_;
    return {Reading::kWhole, head + chunks_.size};
  }

  bool unpack(const protocol::Head& head, std::string_view& body) {
    if (head.coded == protocol::Coding::kNone) return true;
    protocol::trim(inflated_, kKept);
    if (!inflater_.inflate(body, std::min(kMostInflated, plain_calls_.largest_body()), inflated_)) return false;
    body = inflated_;
    return true;
  }

  bool may_become_plain(std::string_view data, std::string_view why) const {
    constexpr std::string_view kStart = "POST /v2/models/";
    const auto common = std::min(data.size(), kStart.size()), line_end = data.find('\n');
    if (line_end != std::string_view::npos && (line_end == 0 || data[line_end - 1] != '\r'))
      return false;  // no head has such lines
    return why == protocol::kInPieces && data.size() < largest_head_ &&
           data.substr(0, common) == kStart.substr(0, common);
  }

  const protocol::PlainCalls& plain_calls_;
  const Keys& keys_;
  std::size_t largest_head_;
  protocol::Chunks chunks_;
  protocol::Inflater inflater_;
  std::string joined_, inflated_;
};

}  // namespace astrarium::front
