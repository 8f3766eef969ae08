// Time is an integer number of nanoseconds, as in astrarium.core.quantities.
#pragma once

#include <cstdint>

namespace astrarium {

using Time = std::int64_t;

inline constexpr Time kMillisecond = 1'000'000;
inline constexpr Time kForever = Time{1} << 60;
inline constexpr Time kLongest = Time{1} << 53;  // of any one duration

}  // namespace astrarium
