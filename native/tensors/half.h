// Half-precision numbers (FP16): from and to JSON without leaving the short way.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>

namespace astrarium::protocol {

// The number as JSON has it: as short as reads back the same, and always recognisable as no whole number.
// JSON has no NaN. *end* must be 40 characters away at least.
inline char* write_real(double value, char* at, char* end) {
  if (!std::isfinite(value)) return static_cast<char*>(std::memcpy(at, "null", 4)) + 4;
  const double size = std::fabs(value);
  const bool fixed = value == 0 || (size >= 1e-5 && size < 1e16);
  const auto form = fixed ? std::chars_format::fixed : std::chars_format::scientific;
  char* last = std::to_chars(at, end - 2, value, form).ptr;
  if (fixed && std::memchr(at, '.', static_cast<std::size_t>(last - at)) == nullptr) {
    *last++ = '.';
    *last++ = '0';
  }
  return last;
}

inline double from_half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = bits >> 15 ? -1.0 : 1.0;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
}

// The nearest half-precision number, of two equally near the even one; false where it is too large for one.
inline bool to_half(double value, std::uint16_t& bits) {
  const double size = std::fabs(value);
  bits = std::signbit(value) ? 0x8000 : 0;
  if (!(size < 65520.0)) return false;  // half way between the largest and what would be the next
  const int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
  const auto steps = static_cast<unsigned>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  // 1024 steps and more carry into the exponent by themselves
  bits = static_cast<std::uint16_t>(bits | (steps + (static_cast<unsigned>(exponent + 14) << 10)));
  return true;
}

// What each half-precision number looks like in JSON: there are few enough of them to have them all ready, and
// an answer of a thousand numbers is then written in microseconds.
class HalfTexts {
 public:
  static const HalfTexts& instance() {
    static const HalfTexts texts;
    return texts;
  }

  std::string_view operator[](std::uint16_t bits) const { return {(*texts_)[bits].text, (*texts_)[bits].size}; }

 private:
  struct Text {
    char text[31];
    std::uint8_t size;
  };

  HalfTexts() : texts_(std::make_unique<std::array<Text, 65536>>()) {
    for (unsigned bits = 0; bits < texts_->size(); ++bits) {
      char digits[48];
      const char* end = write_real(from_half(static_cast<std::uint16_t>(bits)), digits, digits + sizeof digits);
      Text& text = (*texts_)[bits];
      text.size = static_cast<std::uint8_t>(end - digits);
      std::memcpy(text.text, digits, text.size);
    }
  }

  std::unique_ptr<std::array<Text, 65536>> texts_;
};

}  // namespace astrarium::protocol
