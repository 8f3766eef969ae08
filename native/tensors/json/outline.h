// A request's JSON without the elements of its tensors. What is left is short, however large the tensors are.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace astrarium::protocol {

// Copies the JSON but for `inputs[i].data`, in whose place stands which of `pieces` it is. Values that are copied or
// cut out are only followed to their end: whether they are right is for those to say who read them.
class JsonOutline {
 public:
  explicit JsonOutline(std::string_view json) : json_(json) {}

  bool cut() {
    const bool whole = object([this](std::string_view key) {
      return key == "\"inputs\"" && peek() == '[' ? list([this] { return input(); }) : skip();
    });
    text.append(json_, copied_);
    return whole && peek() == '\0' && at_ == json_.size();
  }

  // Where it stopped making sense, after a `cut` that failed.
  std::size_t stopped() const { return at_; }

  std::string text;
  std::vector<std::pair<std::size_t, std::size_t>> pieces;  // begin and end

 private:
  bool input() {
    if (peek() != '{') return skip();
    return object([this](std::string_view key) { return key == "\"data\"" ? data() : skip(); });
  }

  bool data() {
    peek();
    const std::size_t begin = at_;
    if (!skip()) return false;
    text.append(json_, copied_, begin - copied_);
    text += std::to_string(pieces.size());
    pieces.emplace_back(begin, at_);
    copied_ = at_;
    return true;
  }

  char peek() {
    while (at_ < json_.size() && std::string_view(" \n\r\t").find(json_[at_]) != std::string_view::npos) ++at_;
    return at_ < json_.size() ? json_[at_] : '\0';
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  template <class Member>
  bool object(Member member) {
    if (!take('{')) return false;
    if (take('}')) return true;
    do {
      peek();
      const std::size_t begin = at_;
      if (!text_value()) return false;
      const std::string_view key = json_.substr(begin, at_ - begin);
      if (!take(':') || !member(key)) return false;
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

  // To the end of any value; without recursion, since a client decides how deep it is.
  bool skip() {
    const char first = peek();
    if (first == '"') return text_value();
    if (first == '[' || first == '{') return skip_nested();
    const std::size_t begin = at_;
    at_ = std::min(json_.find_first_of(",:]}[{\" \n\r\t", at_), json_.size());
    return at_ > begin;
  }

  bool skip_nested() {
    std::size_t depth = 0;
    while (at_ < json_.size()) {
      const char c = json_[at_];
      if (c == '"') {
        if (!text_value()) return false;
        continue;
      }
      ++at_;
      if (c == '[' || c == '{') ++depth;
      if ((c == ']' || c == '}') && --depth == 0) return true;
    }
    return false;
  }

  bool text_value() {
    if (!take('"')) return false;
    while (at_ < json_.size() && json_[at_] != '"') at_ += json_[at_] == '\\' ? 2 : 1;
    if (at_ >= json_.size()) {
      at_ = json_.size();
      return false;
    }
    ++at_;
    return true;
  }

  std::string_view json_;
  std::size_t at_ = 0, copied_ = 0;
};

}  // namespace astrarium::protocol
