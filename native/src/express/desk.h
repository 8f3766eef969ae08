// The express desk: reads requests that are plain enough, and sends their answers.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "answer.h"
#include "call.h"

namespace astrarium::express {

// Bytes of a body: a larger one is copied so often until it is whole that the long way, which takes it piece by piece,
// keeps others waiting for less time (64 MiB: 15 ms instead of 50).
inline constexpr std::size_t kMostBody = 16 << 20;

struct LongWay {};                                          // not for us
struct Missing { std::size_t bytes; };                      // of the body
using Read = std::variant<LongWay, Missing, std::unique_ptr<Call>>;

class Desk {
 public:
  // *memory* is what workers share; no head or body beyond these bytes goes the short way.
  Desk(char* memory, std::size_t size, std::size_t largest_head, std::size_t largest_body)
      : memory_(memory), size_(size), largest_head_(largest_head), largest_body_(std::min(largest_body, kMostBody)) {}

  void serve(std::shared_ptr<const Model> model) { models_[model->name] = std::move(model); }
  void withhold(const std::string& name) { models_.erase(name); }

  Read read(std::string_view data) const {
    const auto head = HeadReader::read(data, largest_head_);
    if (!head || head->body > largest_body_ || head->json.value_or(head->body) > kMostJson || head->application.size() > kLongestTag) return LongWay{};
    const auto known = models_.find(head->model);
    if (known == models_.end() || (!head->version.empty() && head->version != known->second->version)) return LongWay{};
    const std::string_view body = data.substr(head->size);
    if (body.size() < head->body) return Missing{head->body - body.size()};
    if (body.size() > head->body || head->json.value_or(0) > head->body) return LongWay{};
    auto call = started(*head, known->second);
    const std::size_t json = head->json.value_or(head->body);
    if (!BodyReader(*call, body.substr(0, json), body.substr(json), largest_body_).read()) return LongWay{};
    return call;
  }

  void place(const Call& call, std::size_t offset) {
    if (offset > size_ || call.block_bytes() > size_ - offset) throw std::out_of_range("block");
    call.place(memory_ + offset);
  }

  // Sends an answer; what the socket would not take at once comes back.
  std::optional<std::string> answer(const Call& call, int socket, Rooms rooms, std::size_t offset) {
    if (!fit(*call.model, rooms) || offset > size_ || rooms.bytes > (size_ - offset) / static_cast<std::size_t>(call.rows))
      throw std::out_of_range("rooms");
    rooms.first = memory_ + offset;
    writer_.write(call, rooms);
    const std::size_t sent = writer_.send(socket);
    return sent < writer_.size() ? std::optional(writer_.rest(sent)) : std::nullopt;
  }

 private:
  static std::unique_ptr<Call> started(const Head& head, std::shared_ptr<const Model> model) {
    auto call = std::make_unique<Call>();
    call->model = std::move(model);
    call->application = head.application;
    call->authorization = head.authorization;
    call->api_key = head.api_key;
    return call;
  }

  char* memory_;
  std::size_t size_, largest_head_, largest_body_;
  std::map<std::string, std::shared_ptr<const Model>, std::less<>> models_;
  AnswerWriter writer_;
};

}  // namespace astrarium::express
