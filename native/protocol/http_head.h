// The head of an inference request over HTTP/1.1: what it must be to go the short way.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace astrarium::protocol {

// How bytes are compressed.
enum class Coding : std::uint8_t { kNone, kGzip, kDeflate };
inline constexpr std::string_view kCodings[] = {"identity", "gzip", "deflate"};

struct Head {
  std::string_view model, version, application, authorization, api_key;
  std::size_t size = 0;             // of the head itself
  std::size_t body = 0;             // of a body in chunks nobody knows it beforehand
  std::optional<std::size_t> json;  // bytes of the body before its binary part
  Coding coded = Coding::kNone, accepts = Coding::kNone;
  bool chunked = false;
  bool expects = false;  // it waits for 100 Continue before it sends the body
  bool closes = false;   // the connection, after the answer
  bool timed = false;    // it wants to hear how long each stage took
};

inline bool same_word(std::string_view word, std::string_view lower) {
  if (word.size() != lower.size()) return false;
  for (std::size_t i = 0; i < word.size(); ++i) {
    const char c = word[i] >= 'A' && word[i] <= 'Z' ? static_cast<char>(word[i] | 0x20) : word[i];
    if (c != lower[i]) return false;
  }
  return true;
}

inline bool whole_number(std::string_view text, std::size_t& number) {
  if (text.empty() || text.size() > 15) return false;
  number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return false;
    number = number * 10 + static_cast<std::size_t>(c - '0');
  }
  return true;
}

inline constexpr int kMostHeaders = 256;  // as in server/settings.py
inline constexpr std::string_view kInPieces = "head_in_pieces";

class HeadReader {
 public:
  // Nothing where the head is not whole, or not of a request that goes the short way; *why* then says for what
  // reason: one of a few words, or the header that is in the way.
  static std::optional<Head> read(std::string_view data, std::size_t largest, std::string_view& why) {
    const std::string_view part = data.substr(0, largest);
    HeadReader reader;
    why = reader.read_lines(part);
    if (why.empty()) return reader.head_;
    if (part.find("\r\n\r\n") == std::string_view::npos) why = kInPieces;
    return std::nullopt;
  }

 private:
  enum Known {
    kLength,
    kJson,
    kApplication,
    kAuthorization,
    kApiKey,
    kType,
    kConnection,
    kAccepts,
    kCoded,
    kTransfer,
    kExpect,
    kTimeline,
    kHost,
    kCount
  };
  static constexpr std::string_view kNames[kCount] = {"content-length",
                                                      "inference-header-content-length",
                                                      "x-astrarium-application",
                                                      "authorization",
                                                      "x-api-key",
                                                      "content-type",
                                                      "connection",
                                                      "accept-encoding",
                                                      "content-encoding",
                                                      "transfer-encoding",
                                                      "expect",
                                                      "x-astrarium-timeline",
                                                      "host"};
  // What these ask for, the short way does not do.
  static constexpr std::string_view kUnusual[] = {"proxy-connection"};

  // Empty where all is well.
  std::string_view read_lines(std::string_view data) {
    std::size_t at = 0;
    std::string_view line;
    if (!next_line(data, at, line)) return kInPieces;
    if (!first_line(line)) return "path";
    for (int left = kMostHeaders; next_line(data, at, line); --left) {
      if (line.empty()) {
        head_.size = at;
        return missing();
      }
      if (left == 0) return "too_large";
      if (!header(line)) return why_;
    }
    return kInPieces;
  }

  // The header that is not there, or is one too many; HTTP/1.0 needs no host.
  std::string_view missing() const {
    if (!seen_[kHost] && !is_old_) return kNames[kHost];
    return seen_[kLength] != head_.chunked ? std::string_view() : kNames[kLength];
  }

  static bool next_line(std::string_view data, std::size_t& at, std::string_view& line) {
    const auto end = data.find("\r\n", at);
    if (end == std::string_view::npos) return false;
    line = data.substr(at, end - at);
    at = end + 2;
    return true;
  }

  static bool strip(std::string_view& text, std::string_view prefix) {
    if (text.substr(0, prefix.size()) != prefix) return false;
    text.remove_prefix(prefix.size());
    return true;
  }

  // POST /v2/models/NAME[/versions/V]/infer HTTP/1.1; after a request of HTTP/1.0 the connection is closed.
  bool first_line(std::string_view line) {
    constexpr std::string_view kEnd = "/infer HTTP/1.";
    if (!strip(line, "POST /v2/models/") || line.size() <= kEnd.size()) return false;
    head_.closes = is_old_ = line.back() == '0';
    if (line.back() != '0' && line.back() != '1') return false;
    line.remove_suffix(1);
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
    bool are_visible = true;
    for (const char c : text) are_visible &= c >= ' ' && c <= '~';  // no early end: so it is done for many at once
    return are_visible;
  }

  // Of which characters names of headers are made.
  static constexpr std::array<bool, 256> kToken = [] {
    std::array<bool, 256> allowed{};
    for (int c = '!'; c <= '~'; ++c)
      allowed[static_cast<std::size_t>(c)] =
          std::string_view("\"(),/:;<=>?@[\\]{}").find(static_cast<char>(c)) == std::string_view::npos;
    return allowed;
  }();

  bool header(std::string_view line) {
    why_ = "header";
    std::size_t colon = 0;
    while (colon < line.size() && kToken[static_cast<unsigned char>(line[colon])]) ++colon;
    if (colon == 0 || colon == line.size() || line[colon] != ':') return false;
    const auto value = line.substr(colon + 1);
    return visible(value) && accept_header(line.substr(0, colon), trimmed(value));
  }

  static std::string_view trimmed(std::string_view value) {
    while (!value.empty() && value.front() == ' ') value.remove_prefix(1);
    while (!value.empty() && value.back() == ' ') value.remove_suffix(1);
    return value;
  }

  // Whether a name may be one of those that matter, by its length.
  static constexpr std::uint64_t kLengths = [] {
    std::uint64_t lengths = 0;
    for (const auto name : kNames) lengths |= std::uint64_t{1} << name.size();
    for (const auto name : kUnusual) lengths |= std::uint64_t{1} << name.size();
    return lengths;
  }();

  // Whether a header, and its value, change nothing that the short way would not do.
  bool accept_header(std::string_view name, std::string_view value) {
    if (name.size() >= 64 || !(kLengths >> name.size() & 1)) return true;
    for (const std::string_view other : kUnusual)
      if (same_word(name, other)) {
        why_ = other;
        return false;
      }
    for (int known = 0; known < kCount; ++known)
      if (same_word(name, kNames[known])) {
        why_ = kNames[known];
        return once(known) && take_value(static_cast<Known>(known), value);
      }
    return true;
  }

  bool take_value(Known header, std::string_view value) {
    switch (header) {
      case kLength: return whole_number(value, head_.body);
      case kJson: return whole_number(value, head_.json.emplace());
      case kType: return known_type(value);
      case kConnection: return options(value), true;
      case kAccepts: return coding(value, head_.accepts), true;  // a list is what a library can read: it need not be
      case kCoded: return value.empty() || coding(value, head_.coded);
      case kTransfer: return head_.chunked = !is_old_ && same_word(value, "chunked");
      case kExpect: return head_.expects = !is_old_ && same_word(value, "100-continue");
      case kHost: return is_host(value);
      case kTimeline: return head_.timed = !value.empty() && value != "0", true;
      case kApplication: return keep(head_.application, value);
      case kAuthorization: return keep(head_.authorization, value);
      case kApiKey: return keep(head_.api_key, value);
      default: return false;
    }
  }

  // A plain name or address, and a port; others that are right go the long way too.
  static bool is_host(std::string_view value) {
    bool are_plain = true;
    for (const char c : value)
      are_plain &= (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '-' && c <= ':' && c != '/') || c == '_';
    const auto colon = value.find(':');
    return are_plain && (colon == std::string_view::npos ||
                         value.find_first_not_of("0123456789", colon + 1) == std::string_view::npos);
  }

  // Of the connection. An upgrade is an offer, of which nothing need come.
  void options(std::string_view value) {
    while (!value.empty()) {
      const auto comma = value.find(',');
      head_.closes |= same_word(trimmed(value.substr(0, comma)), "close");
      value.remove_prefix(comma == std::string_view::npos ? value.size() : comma + 1);
    }
  }

  static bool coding(std::string_view value, Coding& result) {
    for (const Coding known : {Coding::kNone, Coding::kGzip, Coding::kDeflate})
      if (same_word(value, kCodings[static_cast<std::size_t>(known)])) {
        result = known;
        return true;
      }
    return false;
  }

  // What follows a semicolon, such as a charset, changes nothing.
  static bool known_type(std::string_view value) {
    value = trimmed(value.substr(0, value.find(';')));
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
  bool is_old_ = false;  // HTTP/1.0
};

}  // namespace astrarium::protocol
