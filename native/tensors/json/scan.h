// A scanner for the JSON that clients really send. What it does not understand at once it refuses, and the
// request goes the long way, where every error has its message.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "tensors/json/text.h"

namespace astrarium::protocol {

class JsonScan {
 public:
  explicit JsonScan(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  // The next character that is not white space, or 0 at the end.
  char peek() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\r' || *at_ == '\t')) ++at_;
    return at_ < end_ ? *at_ : '\0';
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  std::size_t left() const { return static_cast<std::size_t>(end_ - at_); }

  bool at_end() { return peek() == '\0' && at_ == end_; }

  // Printable ASCII without escapes.
  bool text(std::string_view& value) {
    if (!take('"')) return false;
    const char* first = at_;
    while (at_ < end_ && *at_ != '"') {
      if (*at_ < ' ' || *at_ > '~' || *at_ == '\\') return false;
      ++at_;
    }
    if (at_ == end_) return false;
    value = std::string_view(first, static_cast<std::size_t>(at_++ - first));
    return true;
  }

  // In any alphabet, with escapes; appended to *out*.
  bool any_text(std::string& out) {
    if (!take('"')) return false;
    JsonText text({at_, left()}, out);
    if (!text.read()) return false;
    at_ += text.at();
    return true;
  }

  // Anything that is no list and no object, and that every reader of JSON understands; *scratch* is overwritten.
  bool scalar(std::string& scratch) {
    bool flag = false;
    double number = 0;
    scratch.clear();
    switch (peek()) {
      case '"': return any_text(scratch);
      case 't':
      case 'f': return boolean(flag);
      case 'n': return word("null");
      default: return real(number);
    }
  }

  // Moves behind a list without looking at its elements.
  bool skip_list() {
    if (peek() != '[') return false;
    for (int depth = 0; at_ < end_; ++at_) {
      if (*at_ == '[') ++depth;
      else if (*at_ == ']' && --depth == 0) return ++at_, true;
      else if (*at_ == '"' && !skip_text()) return false;
    }
    return false;
  }

  bool key(std::string_view& name) { return text(name) && take(':'); }

  bool boolean(bool& value) {
    const char first = peek();
    if (first != 't' && first != 'f') return false;
    value = first == 't';
    return word(value ? "true" : "false");
  }

  template <class Whole>
  bool whole(Whole& value) {
    const char* first = start_of_number();
    if (first == nullptr) return false;
    const auto [next, error] = std::from_chars(first, end_, value);
    if (error != std::errc() || (next < end_ && (*next == '.' || *next == 'e' || *next == 'E'))) return false;
    at_ = next;
    return true;
  }

  // A finite number; beyond the range of the type is refused.
  template <class Real>
  bool real(Real& result) {
    const char* first = start_of_number();
    if (first == nullptr || !fraction_is_whole(first)) return false;
    double value = 0;
    const auto [next, error] = std::from_chars(first, end_, value);
    result = static_cast<Real>(value);
    at_ = next;
    return error == std::errc() && std::isfinite(result);
  }

  // `{"key": ...}`: *member* reads each value; false from it refuses the whole.
  template <class Member>
  bool object(Member member) {
    if (!take('{')) return false;
    if (take('}')) return true;
    do {
      std::string_view name;
      if (!key(name) || !member(name)) return false;
    } while (take(','));
    return take('}');
  }

  template <class Element>
  bool list(Element element) {
    if (!take('[')) return false;
    if (take(']')) return true;
    do {
      if (!element()) return false;
    } while (take(','));
    return take(']');
  }

  // Whether a list begins here whose first element is a list itself; moves nothing but white space.
  bool nested_list() {
    if (peek() != '[') return false;
    const char* first = at_++;
    const bool nested = peek() == '[';
    at_ = first;
    return nested;
  }

 private:
  // From a text's first quote to its last.
  bool skip_text() {
    for (++at_; at_ < end_ && *at_ != '"'; ++at_)
      if (*at_ == '\\' && ++at_ == end_) return false;
    return at_ < end_;
  }

  static bool digit(const char* p, const char* end) { return p < end && *p >= '0' && *p <= '9'; }

  bool word(std::string_view wanted) {
    if (static_cast<std::size_t>(end_ - at_) < wanted.size() || std::string_view(at_, wanted.size()) != wanted)
      return false;
    at_ += wanted.size();
    return true;
  }

  // JSON has neither a plus sign nor leading zeros.
  const char* start_of_number() {
    peek();
    const char* p = at_ + (at_ < end_ && *at_ == '-');
    if (!digit(p, end_) || (*p == '0' && digit(p + 1, end_))) return nullptr;
    return at_;
  }

  // A point must have a digit after it.
  bool fraction_is_whole(const char* p) const {
    p += *p == '-';
    while (digit(p, end_)) ++p;
    return p >= end_ || *p != '.' || digit(p + 1, end_);
  }

  const char* at_;
  const char* end_;
};

}  // namespace astrarium::protocol
