// The head of an inference request over HTTP/1.1: what it must be to go the short way.
#pragma once

#include <cstring>
#include <optional>
#include <string_view>

namespace astrarium::express {

struct Head {
  std::string_view model, version, application, authorization, api_key;
  std::size_t size = 0;  // of the head itself
  std::size_t body = 0;
  std::optional<std::size_t> json;  // bytes of the body before its binary part
};

inline bool same_word(std::string_view given, std::string_view lower) {
  if (given.size() != lower.size()) return false;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char c = given[i] >= 'A' && given[i] <= 'Z' ? static_cast<char>(given[i] | 0x20) : given[i];
    if (c != lower[i]) return false;
  }
  return true;
}

inline bool whole_number(std::string_view text, std::size_t& found) {
  if (text.empty() || text.size() > 15) return false;
  found = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    found = found * 10 + static_cast<std::size_t>(c - '0');
  }
  return true;
}

inline constexpr int kMostHeaders = 256;  // as in server/settings.py

class HeadReader {
 public:
  // Nothing where the head is not whole, or not of a request that goes the short way; *why* then says for what
  // reason: one of a few words, or the header that is in the way.
  static std::optional<Head> read(std::string_view data, std::size_t largest, std::string_view& why) {
    const auto end = data.substr(0, largest).find("\r\n\r\n");
    why = "head_in_pieces";
    if (end == std::string_view::npos) return std::nullopt;
    HeadReader reader;
    reader.head_.size = end + 4;
    std::string_view rest = data.substr(0, end + 2);
    why = "path";
    if (!reader.first_line(next_line(rest))) return std::nullopt;
    for (int left = kMostHeaders; !rest.empty(); --left) {
      if (left > 0 && reader.header(next_line(rest))) continue;
      why = left > 0 ? reader.why_ : "too_large";
      return std::nullopt;
    }
    why = kNames[kLength];
    return reader.seen_[kLength] ? std::optional(reader.head_) : std::nullopt;
  }

 private:
  enum Known { kLength, kJson, kApplication, kAuthorization, kApiKey, kType, kConnection, kAccepts, kCount };
  static constexpr std::string_view kNames[kCount] = {
      "content-length", "inference-header-content-length", "x-astrarium-application", "authorization",
      "x-api-key",      "content-type",                    "connection",              "accept-encoding"};
  // What these ask for, the short way does not do.
  static constexpr std::string_view kUnusual[] = {"transfer-encoding", "content-encoding", "expect",
                                                  "upgrade",           "proxy-connection", "x-astrarium-timeline"};

  static std::string_view next_line(std::string_view& rest) {
    const auto end = rest.find("\r\n");
    const auto line = rest.substr(0, end);
    rest.remove_prefix(end + 2);
    return line;
  }

  static bool strip(std::string_view& text, std::string_view prefix) {
    if (text.substr(0, prefix.size()) != prefix) return false;
    text.remove_prefix(prefix.size());
    return true;
  }

  // POST /v2/models/NAME[/versions/V]/infer HTTP/1.1
  bool first_line(std::string_view line) {
    constexpr std::string_view kEnd = "/infer HTTP/1.1";
    if (!strip(line, "POST /v2/models/") || line.size() < kEnd.size()) return false;
    if (line.substr(line.size() - kEnd.size()) != kEnd) return false;
    line.remove_suffix(kEnd.size());
    const auto slash = line.find('/');
    head_.model = line.substr(0, slash);
    if (slash == std::string_view::npos) return plain(head_.model);
    line.remove_prefix(slash);
    if (!strip(line, "/versions/")) return false;
    head_.version = line;
    return plain(head_.model) && plain(head_.version);
  }

  // A segment of a path that means what it says.
  static bool plain(std::string_view segment) {
    return !segment.empty() && segment.find_first_of("%?#/ ") == std::string_view::npos && visible(segment);
  }

  static bool visible(std::string_view text) {
    for (const char c : text)
      if (c < ' ' || c > '~') return false;
    return true;
  }

  bool header(std::string_view line) {
    why_ = "header";
    const auto colon = line.find(':');
    if (colon == 0 || colon == std::string_view::npos || !visible(line)) return false;
    const auto name = line.substr(0, colon);
    if (name.find_first_of(" \"(),/:;<=>?@[\\]{}") != std::string_view::npos) return false;
    auto value = line.substr(colon + 1);
    while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
    while (!value.empty() && value.back() == ' ') value.remove_suffix(1);
    return meant(name, value);
  }

  // Whether a header, and its value, change nothing that the short way would not do.
  bool meant(std::string_view name, std::string_view value) {
    for (const std::string_view other : kUnusual)
      if (same_word(name, other)) return why_ = other, false;
    for (int known = 0; known < kCount; ++known)
      if (same_word(name, kNames[known])) return why_ = kNames[known], once(known) && taken(static_cast<Known>(known), value);
    return true;
  }

  bool taken(Known header, std::string_view value) {
    switch (header) {
      case kLength: return whole_number(value, head_.body);
      case kJson: return whole_number(value, head_.json.emplace());
      case kType: return known_type(value);
      case kConnection: return same_word(value, "keep-alive");
      case kAccepts: return !same_word(value, "gzip") && !same_word(value, "deflate");
      case kApplication: return keep(head_.application, value);
      case kAuthorization: return keep(head_.authorization, value);
      case kApiKey: return keep(head_.api_key, value);
      default: return false;
    }
  }

  static bool known_type(std::string_view value) {
    return same_word(value, "application/json") || same_word(value, "application/octet-stream") ||
           same_word(value, "application/x-www-form-urlencoded");
  }

  static bool keep(std::string_view& place, std::string_view value) {
    place = value;
    return true;
  }

  bool once(int header) {
    if (seen_[header]) return false;
    return seen_[header] = true;
  }

  Head head_;
  std::string_view why_;
  bool seen_[kCount] = {};
};

}  // namespace astrarium::express
