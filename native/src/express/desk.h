// The express desk: reads requests that are plain enough, and sends their answers.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "answer.h"
#include "call.h"

namespace astrarium::express {

// Bytes of a body: a larger one is copied so often until it is whole that the long way, which takes it piece by piece,
// keeps others waiting for less time (64 MiB: 15 ms instead of 50).
inline constexpr std::size_t kMostBody = 16 << 20;

struct LongWay { std::string_view why; };  // not for us
struct Missing { std::size_t bytes; };     // of the body
struct Hopeless {                          // no answer to it would be in time
  std::shared_ptr<const Model> model;
  std::int64_t objective;
  std::int64_t open;  // calls of its model that are; 0: not they are in the way, it waited too long unread
};
using Read = std::variant<LongWay, Missing, Hopeless, std::unique_ptr<Call>>;

class Desk {
 public:
  // *memory* is what workers share; no head or body beyond these bytes goes the short way.
  Desk(char* memory, std::size_t size, std::size_t largest_head, std::size_t largest_body)
      : memory_(memory), size_(size), largest_head_(largest_head), largest_body_(std::min(largest_body, kMostBody)) {}

  void serve(std::shared_ptr<const Model> model) {
    HalfTexts::all();  // made now, and not when the first answer needs them
    withheld_.erase(model->name);
    models_[model->name] = std::move(model);
  }
  // *why* its requests go the long way.
  void withhold(const std::string& name, std::string why) {
    models_.erase(name);
    withheld_[name] = std::move(why);
  }

  // What a lone request of this model needs, in nanoseconds, from when it is read until its client has the answer.
  void plan(int model, std::int64_t needed) { needed_[model] = needed; }

  // So many calls of this model are open that a further one could not be in time; 0: it could.
  void full(int model, std::int64_t open) { full_[model] = open; }

  // *waited* is how long the request lay unread, in nanoseconds.
  Read read(std::string_view data, std::int64_t waited) const {
    std::string_view why;
    const auto head = HeadReader::read(data, largest_head_, why);
    if (!head) return LongWay{why};
    if (head->body > largest_body_ || head->application.size() > kLongestTag) return LongWay{"too_large"};
    if (std::min(head->json.value_or(head->body), head->body) > kMostJson) return LongWay{"large_json"};
    const auto known = models_.find(head->model);
    if (known == models_.end()) return LongWay{why_withheld(head->model)};
    if (!head->version.empty() && head->version != known->second->version) return LongWay{"version"};
    const std::string_view body = data.substr(head->size);
    if (body.size() < head->body) return Missing{head->body - body.size()};
    if (body.size() > head->body) return LongWay{"pipelined"};
    if (head->json.value_or(0) > head->body) return LongWay{"body"};
    return checked(*head, known->second, body, waited);
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

  // Sends a refusal; what the socket would not take comes back.
  std::string turn_down(int socket, const Hopeless& call, std::int64_t waited) {
    if (call.open)
      writer_.refuse_for_others(call.model->name, call.objective, call.open);
    else
      writer_.refuse_unread(call.model->name, call.objective, waited);
    const std::size_t sent = writer_.send(socket);
    return sent < writer_.size() ? writer_.rest(sent) : std::string();
  }

 private:
  std::string_view why_withheld(std::string_view name) const {
    const auto known = withheld_.find(name);
    return known == withheld_.end() ? "unknown_model" : std::string_view(known->second);
  }

  Read checked(const Head& head, std::shared_ptr<const Model> model, std::string_view body, std::int64_t waited) const {
    auto call = started(head, model);
    const std::size_t json = head.json.value_or(head.body);
    BodyReader reader(*call, body.substr(0, json), body.substr(json), largest_body_);
    if (!reader.read()) return LongWay{reader.why()};
    const std::int64_t objective = objective_of(*call);
    if (too_late(*call, objective, waited)) return Hopeless{std::move(model), objective, 0};
    if (const auto open = in_the_way(*call, objective)) return Hopeless{std::move(model), objective, open};
    return call;
  }

  // The call's own, or that of its priority, or the model's; 0: none, or none that is known here.
  static std::int64_t objective_of(const Call& call) {
    if (call.timeout_us) return 1000 * call.timeout_us;
    if (!call.priority || call.model->priorities.empty()) return call.model->objective;
    const auto known = call.model->priorities.find(call.priority);
    return known == call.model->priorities.end() ? 0 : known->second;
  }

  // A loop that came this late to a request will need as long again before its batch leaves.
  bool too_late(const Call& call, std::int64_t objective, std::int64_t waited) const {
    const auto needed = needed_.find(call.model->index);
    return objective && waited && needed != needed_.end() && waited > (objective - needed->second) / 2;
  }

  std::int64_t in_the_way(const Call& call, std::int64_t objective) const {
    const auto known = full_.find(call.model->index);
    return known == full_.end() || objective > call.model->objective ? 0 : known->second;
  }

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
  std::map<std::string, std::string, std::less<>> withheld_;  // with the reason
  std::unordered_map<int, std::int64_t> needed_, full_;       // by model
  AnswerWriter writer_;
};

}  // namespace astrarium::express
