// What a client may ask of a network thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/units.h"

namespace astrarium::front {

// HttpLimits in astrarium.server.settings.
struct HttpLimits {
  std::size_t head_bytes, body_bytes, held_bytes;
  Time request, keep_alive;
  std::int64_t connections;  // 0: any number
  // From so many bytes that are missing on, tensors are received where workers find them.
  std::size_t straight = 32 << 10;
};

}  // namespace astrarium::front
