// What the bytes that a client has sent are, from the first one on: part of a plain call, a whole one, or something
// that goes the long way.
#pragma once

#include <algorithm>
#include <string_view>

#include "../express/desk.h"
#include "keys.h"

namespace astrarium::front {

struct Reading {
  enum Found { kPart, kWhole, kOther };
  Found found;
  std::size_t size = 0;      // of a whole request; of a part: it is of no use to look again before so many bytes are here
  std::string_view why = {};  // another goes the long way
};

class RequestReader {
 public:
  RequestReader(const express::Desk& desk, const Keys& keys, std::size_t largest_head)
      : desk_(desk), keys_(keys), largest_head_(largest_head) {}

  // Fills *call* from a whole request.
  Reading read(std::string_view data, express::Call& call) const {
    std::string_view why;
    const auto asked = desk_.asked(data, why);
    if (!asked) return may_become_plain(data, why) ? part(data.size() + 1) : other(why);
    if (!keys_.admit(asked->head.authorization, asked->head.api_key)) return other("key");  // who shows no key has no body kept either
    if (data.size() < asked->size()) return part(asked->size());
    call.clear();
    why = desk_.fill(call, *asked, data.substr(asked->head.size, asked->head.body));
    return why.empty() ? Reading{Reading::kWhole, asked->size()} : other(why);
  }

 private:
  static Reading part(std::size_t least) { return {Reading::kPart, least}; }
  static Reading other(std::string_view why) { return {Reading::kOther, 0, why}; }

  bool may_become_plain(std::string_view data, std::string_view why) const {
    constexpr std::string_view kStart = "POST /v2/models/";
    const auto both = std::min(data.size(), kStart.size());
    return why == express::kInPieces && data.size() < largest_head_ && data.substr(0, both) == kStart.substr(0, both);
  }

  const express::Desk& desk_;
  const Keys& keys_;
  std::size_t largest_head_;
};

}  // namespace astrarium::front
