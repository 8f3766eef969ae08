// The elements of a BYTES tensor from texts in JSON.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "tensors/json/scan.h"

namespace astrarium::protocol {

// Appends a text as an element of the layout in tensors/bytes_layout.h; false where there is none, or a broken one.
inline bool append_text(JsonScan& scan, std::string& out) {
  const std::size_t begin = out.size();
  out.append(sizeof(std::uint32_t), '\0');
  if (!scan.any_text(out)) return false;
  const auto length = static_cast<std::uint32_t>(out.size() - begin - sizeof(std::uint32_t));
  std::memcpy(out.data() + begin, &length, sizeof length);
  return true;
}

}  // namespace astrarium::protocol
