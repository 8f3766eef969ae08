// Reads what we need of MessagePack. Whatever it is given, it reads no further than that, and says whether all was
// well.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

namespace astrarium::protocol {

class PackReader {
 public:
  explicit PackReader(std::string_view packet) : rest_(packet) {}

  // Whether everything read until now was there, and of the kind that was to be read.
  bool good() const { return good_; }
  void refuse() { good_ = false; }

  bool begins_with(std::string_view start) {
    if (rest_.substr(0, start.size()) != start) return false;
    rest_.remove_prefix(start.size());
    return true;
  }

  // Whether nil comes next, which is then passed over.
  bool nil() {
    if (rest_.empty() || rest_[0] != '\xc0') return false;
    rest_.remove_prefix(1);
    return true;
  }

  template <class Read>
  std::vector<std::invoke_result_t<Read>> list(Read read) {
    std::vector<std::invoke_result_t<Read>> items;
    for (std::uint64_t left = size(); left > 0 && good_; --left) items.push_back(read());
    return items;
  }

  // Of an array.
  std::uint64_t size() {
    const unsigned char kind = next();
    if (kind >> 4 == 9) return kind & 15;
    if (kind == 0xdc) return bytes(2);
    if (kind == 0xdd) return bytes(4);
    good_ = false;
    return 0;
  }

  std::string_view text() {
    const unsigned char kind = next();
    if (kind >> 5 == 5) return take_bytes(kind & 31);
    return sized(kind, 0xd9);
  }

  std::string_view binary() { return sized(next(), 0xc4); }

  // A whole number that is not negative.
  std::int64_t number() {
    const unsigned char kind = next();
    if (kind < 0x80) return kind;
    const std::uint64_t value = kind >= 0xcc && kind <= 0xcf ? bytes(1 << (kind - 0xcc)) : ~std::uint64_t{0};
    if (value > static_cast<std::uint64_t>(INT64_MAX)) good_ = false;
    return good_ ? static_cast<std::int64_t>(value) : 0;
  }

 private:
  unsigned char next() {
    if (rest_.empty()) good_ = false;
    if (!good_) return 0;
    const auto byte = static_cast<unsigned char>(rest_[0]);
    rest_.remove_prefix(1);
    return byte;
  }

  std::uint64_t bytes(int count) {
    std::uint64_t value = 0;
    for (int i = 0; i < count; ++i) value = value << 8 | next();
    return value;
  }

  std::string_view take_bytes(std::uint64_t length) {
    if (length > rest_.size()) good_ = false;
    if (!good_) return {};
    const std::string_view bytes = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return bytes;
  }

  // With a length of 1, 2 or 4 bytes before it: *first* is the kind with 1.
  std::string_view sized(unsigned char kind, unsigned char first) {
    if (kind < first || kind > first + 2) good_ = false;
    return good_ ? take_bytes(bytes(1 << (kind - first))) : std::string_view();
  }

  std::string_view rest_;
  bool good_ = true;
};

}  // namespace astrarium::protocol
