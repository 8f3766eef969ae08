// Which numbers an input takes, checked before a model can see any other. Twin of astrarium.serving.live.limits.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "tensors/datatype.h"
#include "tensors/half.h"

namespace astrarium::protocol {

struct Limits {
  std::int64_t low = 0, high = 0;  // as native_bounds in Python makes them
  std::string expected;            // what would be right

  bool operator==(const Limits&) const = default;
};

inline constexpr std::size_t kAllInside = static_cast<std::size_t>(-1);

// The bits of a floating number as a whole one of the same order: those of negative numbers are turned around. NaN lies
// beyond the infinities.
template <class Bits>
Bits ordered(Bits bits) {
  return bits ^ ((bits >> (8 * sizeof bits - 1)) & std::numeric_limits<Bits>::max());
}

template <class Number>
Number number_at(std::string_view data, std::size_t at) {
  Number number;
  std::memcpy(&number, data.data() + at * sizeof number, sizeof number);
  return number;
}

// How far each number lies above the lowest tells both bounds at once: what is below it wraps around. A piece is looked
// at as a whole, without branches, before anybody looks for the element.
template <class Number, bool kReal>
std::size_t first_outside(std::string_view data, const Limits& limits) {
  using Distance = std::make_unsigned_t<Number>;
  constexpr std::size_t kPiece = 1024;
  const auto low = static_cast<Distance>(limits.low),
             most = static_cast<Distance>(static_cast<Distance>(limits.high) - low);
  const auto distance = [data, low](std::size_t at) {
    Number value = number_at<Number>(data, at);
    if constexpr (kReal) value = ordered(value);
    return static_cast<Distance>(static_cast<Distance>(value) - low);
  };
  const std::size_t count = data.size() / sizeof(Number);
  for (std::size_t begin = 0; begin < count; begin += kPiece) {
    const std::size_t end = std::min(count, begin + kPiece);
    Distance longest = 0;
    for (std::size_t at = begin; at < end; ++at) longest = std::max(longest, distance(at));
    if (longest <= most) continue;
    std::size_t at = begin;
    while (distance(at) <= most) ++at;
    return at;
  }
  return kAllInside;
}

// The first element beyond the limits, or kAllInside.
inline std::size_t first_outside(std::string_view data, Kind kind, const Limits& limits) {
  switch (kind) {
    case Kind::kBool:
    case Kind::kBytes: return kAllInside;
    case Kind::kF16:
    case Kind::kBF16: return first_outside<std::int16_t, true>(data, limits);
    case Kind::kF32: return first_outside<std::int32_t, true>(data, limits);
    case Kind::kF64: return first_outside<std::int64_t, true>(data, limits);
    default: return visit_whole(kind, [&](auto zero) { return first_outside<decltype(zero), false>(data, limits); });
  }
}

// A number as Python shows it.
inline std::string shown_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const double size = std::fabs(value);
  const bool fixed = value == 0 || (size >= 1e-4 && size < 1e16);
  char digits[48];
  char* end = std::to_chars(digits, digits + sizeof digits, value,
                            fixed ? std::chars_format::fixed : std::chars_format::scientific)
                  .ptr;
  std::string text(digits, end);
  return fixed && text.find('.') == std::string::npos ? text + ".0" : text;
}

inline double from_bfloat16(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

inline std::string shown_element(std::string_view data, Kind kind, std::size_t at) {
  switch (kind) {
    case Kind::kF16: return shown_real(from_half(number_at<std::uint16_t>(data, at)));
    case Kind::kBF16: return shown_real(from_bfloat16(number_at<std::uint16_t>(data, at)));
    case Kind::kF32: return shown_real(number_at<float>(data, at));
    case Kind::kF64: return shown_real(number_at<double>(data, at));
    default: return visit_whole(kind, [&](auto zero) { return std::to_string(number_at<decltype(zero)>(data, at)); });
  }
}

}  // namespace astrarium::protocol
