// API keys. A comparison takes the same time whether or not, and where, a key differs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/http_head.h"

namespace astrarium::front {

class Keys {
 public:
  Keys() = default;
  explicit Keys(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  explicit operator bool() const { return !keys_.empty(); }

  static constexpr std::int64_t kNone = -1;

  // Which one of them is shown in these headers: its number, kNone where there are no keys and anybody may come, or
  // nothing.
  std::optional<std::int64_t> find(std::string_view authorization, std::string_view api_key) const {
    return keys_.empty() ? kNone : known(shown(authorization, api_key));
  }
  bool admit(std::string_view authorization, std::string_view api_key) const {
    return find(authorization, api_key).has_value();
  }

 private:
  // As shown_key in astrarium.server.protocol.keys.
  static std::string_view shown(std::string_view authorization, std::string_view api_key) {
    const auto space = authorization.find(' ');
    if (!protocol::same_word(authorization.substr(0, space), "bearer")) return api_key;
    auto key = space == std::string_view::npos ? std::string_view() : authorization.substr(space + 1);
    while (!key.empty() && key.front() == ' ') key.remove_prefix(1);
    return key;
  }

  std::optional<std::int64_t> known(std::string_view shown) const {
    std::optional<std::int64_t> match;
    for (std::size_t at = 0; at < keys_.size(); ++at)  // all of them, whichever matches
      if (same(shown, keys_[at])) match = static_cast<std::int64_t>(at);
    return match;
  }

  // The time depends on what was given alone.
  static bool same(std::string_view shown, std::string_view key) {
    unsigned char differs = shown.size() != key.size();
    for (std::size_t i = 0; i < shown.size(); ++i)
      differs |= static_cast<unsigned char>(shown[i] ^ key[i % key.size()]);
    return differs == 0;
  }

  std::vector<std::string> keys_;  // none is empty
};

}  // namespace astrarium::front
