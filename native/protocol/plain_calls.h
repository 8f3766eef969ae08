// Reads requests that are plain enough.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "protocol/answer.h"
#include "protocol/compression.h"
#include "protocol/json_body.h"

namespace astrarium::protocol {

// Bytes of a body: to place a larger one where workers find it takes longer (64 MiB: 20 ms) than others should wait.
inline constexpr std::size_t kMostBody = 64 << 20;

struct PlainRequest {  // by a head
  Head head;
  const std::shared_ptr<const Model>& model;
};

class PlainCalls {
 public:
  // No head or body beyond these bytes goes the short way.
  PlainCalls(std::size_t largest_head, std::size_t largest_body)
      : largest_head_(largest_head), largest_body_(std::min(largest_body, kMostBody)) {}

  void serve(std::shared_ptr<const Model> model) {
    HalfTexts::instance();  // made now, and not when the first answer needs them
    withheld_.erase(model->name);
    models_[model->name] = std::move(model);
  }
  // *why* its requests go the long way.
  void withhold(const std::string& name, std::string why) {
    models_.erase(name);
    withheld_[name] = std::move(why);
  }

  // What the head asks for; nothing where it is not whole or its request goes the long way, and *why*.
  std::optional<PlainRequest> read_head(std::string_view data, std::string_view& why) const {
    const auto head = HeadReader::read(data, largest_head_, why);
    if (!head) return std::nullopt;
    why = "too_large";
    if (head->body > largest_body_ || head->application.size() > kLongestTag) return std::nullopt;
    why = "large_json";
    if (head->coded == Coding::kNone && std::min(head->json.value_or(head->body), head->body) > kMostJson)
      return std::nullopt;
    why = head->coded != Coding::kNone ? "content-encoding" : "accept-encoding";
    if ((head->coded != Coding::kNone || head->accepts != Coding::kNone) && !Zlib::library()) return std::nullopt;
    const auto* model = find(head->model, why);
    if (model == nullptr) return std::nullopt;
    why = "version";
    if (!head->version.empty() && head->version != (*model)->version) return std::nullopt;
    return PlainRequest{*head, *model};
  }

  // Nothing where calls of a model go the long way, and *why*.
  const std::shared_ptr<const Model>* find(std::string_view name, std::string_view& why) const {
    const auto known = models_.find(name);
    if (known != models_.end()) return &known->second;
    why = why_withheld(name);
    return nullptr;
  }

  // Fills a call that is as new; where its request goes the long way, says why.
  std::string_view fill(Call& call, const PlainRequest& request, std::string_view body) const {
    const std::size_t json = request.head.json.value_or(body.size());
    if (json > body.size()) return "body";
    if (json > kMostJson) return "large_json";
    return fill(call, request, body.substr(0, json), body.substr(json));
  }
  std::string_view fill(Call& call, const PlainRequest& request, std::string_view json, std::string_view binary) const {
    call.model = request.model;
    call.accepts = request.head.accepts;
    call.closes = request.head.closes;
    call.timed = request.head.timed;
    call.application = request.head.application;
    BodyReader reader(call, json, binary, largest_body_);
    return reader.read() ? std::string_view() : reader.why();
  }

  std::size_t largest_body() const { return largest_body_; }

 private:
  std::string_view why_withheld(std::string_view name) const {
    const auto known = withheld_.find(name);
    return known == withheld_.end() ? "unknown_model" : std::string_view(known->second);
  }

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  std::size_t largest_head_, largest_body_;
  std::unordered_map<std::string, std::shared_ptr<const Model>, Hash, std::equal_to<>> models_;
  std::map<std::string, std::string, std::less<>> withheld_;  // with the reason
};

}  // namespace astrarium::protocol
