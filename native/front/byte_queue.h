// Bytes that have come and were not read yet, or that wait to be sent.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "protocol/trim.h"

namespace astrarium::front {

// An empty one holds next to no memory.
class ByteQueue {
 public:
  bool empty() const { return size() == 0; }
  std::size_t size() const { return text_.size() - begin_; }
  std::string_view view() const { return std::string_view(text_).substr(begin_); }
  void append(std::string_view more) { text_.append(more); }
  void reserve(std::size_t size) { text_.reserve(size); }

  void consume(std::size_t count) {
    begin_ += count;
    if (begin_ == text_.size()) clear();
    else if (begin_ > text_.size() / 2) {
      text_.erase(0, begin_);
      begin_ = 0;
    }
  }

  void clear() {
    begin_ = 0;
    protocol::trim(text_, kKept);
  }

 private:
  static constexpr std::size_t kKept = 64;  // bytes

  std::string text_;
  std::size_t begin_ = 0;
};

}  // namespace astrarium::front
