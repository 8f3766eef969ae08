// The machine's monotonic clock, which workers and Python read too.
#pragma once

#include <time.h>

#include "common/units.h"

namespace astrarium::front {

inline Time monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return Time{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

}  // namespace astrarium::front
