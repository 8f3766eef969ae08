// A time as people read it in messages.
#pragma once

#include <cstdio>
#include <string>

#include "common/units.h"

namespace astrarium::front {

// Twin of rounded_duration in astrarium.core.quantities.
inline std::string rounded_duration(Time time) {
  constexpr Time kMicrosecond = 1000, kSecond = 1'000'000'000;
  if (time < kMicrosecond) return time ? std::to_string(time) + " ns" : "0 ms";
  const Time size = time >= kSecond ? kSecond : kMillisecond;
  char text[32];
  const double value = static_cast<double>(time) / static_cast<double>(size);
  std::snprintf(text, sizeof text, time < 999 * size ? "%.3g" : "%.0f", value);
  return std::string(text) + (size == kSecond ? " s" : " ms");
}

}  // namespace astrarium::front
