// The fields of a request's head and trailers, as RFC 9113 (section 8) allows them. What breaks a rule here makes the
// request malformed: an error of its stream, not of the connection.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/http_head.h"
#include "protocol/trim.h"

namespace astrarium::front {

// Lower-case letters, digits and the other characters of a token; a colon only in front, where *pseudo* fields have
// one.
inline bool is_field_name(std::string_view name) {
  static constexpr auto kAllowed = [] {
    std::array<bool, 256> allowed{};
    for (const char c : std::string_view("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"))
      allowed[static_cast<unsigned char>(c)] = true;
    return allowed;
  }();
  if (!name.empty() && name.front() == ':') name.remove_prefix(1);
  bool good = !name.empty();
  for (const char c : name) good &= kAllowed[static_cast<unsigned char>(c)];
  return good;
}

inline bool is_field_value(std::string_view value) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  if (value.empty()) return true;
  bool good = !is_blank(value.front()) && !is_blank(value.back());
  for (const char c : value) good &= c != '\0' && c != '\r' && c != '\n';
  return good;
}

// Whether a field speaks about a connection of HTTP/1.1, which a request of HTTP/2 must not.
inline bool is_about_connection(std::string_view name, std::string_view value) {
  switch (name.size()) {
    case 2: return name == "te" && value != "trailers";
    case 7: return name == "upgrade";
    case 10: return name == "connection" || name == "keep-alive";
    case 16: return name == "proxy-connection";
    case 17: return name == "transfer-encoding";
    default: return false;
  }
}

inline bool is_same_host(std::string_view host, std::string_view other) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; };
  return std::equal(host.begin(), host.end(), other.begin(), other.end(),
                    [&](char a, char b) { return lower(a) == lower(b); });
}

// Checks the fields of one request's head after the other; a connection has one of these.
class RequestHead {
 public:
  void begin() {
    seen_ = 0;
    length_ = -1;
    good_ = true;
    has_fields_ = false;
    protocol::trim(authority_, kKept);
    protocol::trim(host_, kKept);
  }

  // *clean*: name and value have only characters that they may have. False once the head is malformed.
  bool take(std::string_view name, std::string_view value, bool clean) {
    good_ = good_ && clean && (name.front() == ':' ? take_pseudo(name, value) : take_field(name, value));
    return good_;
  }

  // To be called when all fields were taken.
  bool well_formed() const {
    constexpr unsigned kNeeded = kMethod | kScheme | kPath;
    return good_ && (seen_ & kNeeded) == kNeeded &&
           (host_.empty() || authority_.empty() || is_same_host(host_, authority_));
  }

  std::int64_t length() const { return length_; }  // of the content; -1: it does not say

 private:
  static constexpr std::size_t kKept = 256;  // bytes of memory, for the next head
  enum Pseudo : unsigned { kMethod = 1, kScheme = 2, kPath = 4, kAuthority = 8 };

  bool take_pseudo(std::string_view name, std::string_view value) {
    if (has_fields_) return false;
    if (name == ":path") return once(kPath) && (value == "*" || value.substr(0, 1) == "/");
    if (name == ":method") return once(kMethod) && !value.empty();
    if (name == ":scheme") return once(kScheme) && !value.empty();
    if (name != ":authority" || value.find('@') != std::string_view::npos) return false;  // no names of users
    authority_ = value;
    return once(kAuthority);
  }

  bool once(Pseudo field) {
    const bool first = !(seen_ & field);
    seen_ |= field;
    return first;
  }

  bool take_field(std::string_view name, std::string_view value) {
    has_fields_ = true;
    if (name == "content-length") return take_length(value);
    if (name == "host") return take_host(value);
    return !is_about_connection(name, value);
  }

  bool take_length(std::string_view value) {
    std::size_t length = 0;
    if (!protocol::whole_number(value, length)) return false;
    if (length_ >= 0 && length_ != static_cast<std::int64_t>(length)) return false;
    length_ = static_cast<std::int64_t>(length);
    return true;
  }

  bool take_host(std::string_view value) {
    if (!host_.empty() && host_ != value) return false;
    host_ = value;
    return true;
  }

  unsigned seen_ = 0;
  std::int64_t length_ = -1;
  bool good_ = true, has_fields_ = false;
  std::string authority_, host_;
};

}  // namespace astrarium::front
