// Texts in JSON, in any alphabet and with escapes: read into UTF-8, and written as msgspec writes them.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace astrarium::protocol {

inline bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const auto first = static_cast<unsigned char>(text[at++]);
    const int more = first < 0x80                    ? 0
                     : first >= 0xc2 && first < 0xe0 ? 1
                     : first >> 4 == 14              ? 2
                     : first >= 0xf0 && first < 0xf5 ? 3
                                                     : -1;
    if (more < 0 || text.size() - at < static_cast<std::size_t>(more)) return false;
    std::uint32_t code = more == 0 ? first : first & (0x3f >> more);
    for (int i = 0; i < more; ++i) {
      const auto next = static_cast<unsigned char>(text[at++]);
      if (next >> 6 != 2) return false;
      code = code << 6 | (next & 63);
    }
    if ((more == 2 && (code < 0x800 || (code >= 0xd800 && code < 0xe000))) ||
        (more == 3 && (code < 0x10000 || code > 0x10ffff)))
      return false;
  }
  return true;
}

// Characters of UTF-8.
inline std::size_t characters(std::string_view text) {
  std::size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) >> 6) != 2;
  return count;
}

// Reads a text up to the quote that ends it, and appends it to `out`.
class JsonText {
 public:
  JsonText(std::string_view json, std::string& out) : json_(json), out_(out) {}

  bool read() {
    const std::size_t begin = out_.size();
    while (at_ < json_.size() && json_[at_] != '"')
      if (!stretch() && !character()) return false;
    if (at_ >= json_.size()) return false;
    ++at_;
    return is_utf8(std::string_view(out_).substr(begin));
  }

  std::size_t at() const { return at_; }  // behind that quote

 private:
  // Plain characters, all at once; false where there are none.
  bool stretch() {
    std::size_t end = at_;
    while (end < json_.size() && json_[end] != '"' && json_[end] != '\\' &&
           static_cast<unsigned char>(json_[end]) >= ' ')
      ++end;
    if (end == at_) return false;
    out_.append(json_.substr(at_, end - at_));
    at_ = end;
    return true;
  }

  bool character() {
    if (json_[at_++] != '\\' || at_ >= json_.size()) return false;
    constexpr std::string_view kEscapes = "\"\\/bfnrt", kMeant = "\"\\/\b\f\n\r\t";
    const char escape = json_[at_++];
    if (escape == 'u') return unicode();
    const auto place = kEscapes.find(escape);
    return place != std::string_view::npos && (out_ += kMeant[place], true);
  }

  bool unicode() {
    std::uint32_t code = 0, second = 0;
    if (!hex(code) || (code >= 0xdc00 && code < 0xe000)) return false;
    if (code >= 0xd800 && code < 0xdc00) {
      if (json_.substr(at_, 2) != "\\u" || (at_ += 2, !hex(second)) || second < 0xdc00 || second > 0xdfff) return false;
      code = 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00);
    }
    utf8(code);
    return true;
  }

  bool hex(std::uint32_t& code) {
    if (json_.size() - at_ < 4) return false;
    const auto [end, error] = std::from_chars(json_.data() + at_, json_.data() + at_ + 4, code, 16);
    at_ += 4;
    return error == std::errc() && end == json_.data() + at_;
  }

  void utf8(std::uint32_t code) {
    const auto put = [this](std::uint32_t byte) { out_ += static_cast<char>(byte); };
    if (code < 0x80) return put(code);
    if (code < 0x800) {
      put(0xc0 | code >> 6);
    } else if (code < 0x10000) {
      put(0xe0 | code >> 12);
      put(0x80 | (code >> 6 & 63));
    } else {
      put(0xf0 | code >> 18);
      put(0x80 | (code >> 12 & 63));
      put(0x80 | (code >> 6 & 63));
    }
    put(0x80 | (code & 63));
  }

  std::string_view json_;
  std::size_t at_ = 0;
  std::string& out_;
};

// Any text in UTF-8, without the quotes around it.
inline void append_escaped(std::string& json, std::string_view text) {
  constexpr char kNamed[] = "\b\t\n\f\r", kLetters[] = "btnfr", kHex[] = "0123456789abcdef";
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const auto code = static_cast<unsigned char>(c);
    if (code >= ' ' && c != '"' && c != '\\') continue;
    json.append(text.substr(begin, at - begin));
    begin = at + 1;
    if (code >= ' ') {
      json += '\\';
      json += c;
    } else if (const char* named = std::strchr(kNamed, c); c != '\0' && named != nullptr) {
      json += '\\';
      json += kLetters[named - kNamed];
    } else {
      json += "\\u00";
      json += kHex[code >> 4];
      json += kHex[code & 15];
    }
  }
  json.append(text.substr(begin));
}

inline void append_quoted(std::string& json, std::string_view text) {
  json += '"';
  append_escaped(json, text);
  json += '"';
}

}  // namespace astrarium::protocol
