// A BYTES tensor in its binary layout: elements of any length, each after its length in 32 bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

namespace astrarium::protocol {

// How many elements there are, and where the last one ends: past the data where a length says too much. Counts no
// further than one more than *most*, so that a request takes no longer than the shape that it announces.
inline std::pair<std::size_t, std::size_t> bytes_elements(std::string_view data, std::size_t most) {
  std::size_t count = 0, at = 0;
  while (data.size() - at >= sizeof(std::uint32_t) && count <= most) {
    std::uint32_t length;  // little-endian, as the machines that this runs on
    std::memcpy(&length, data.data() + at, sizeof length);
    at += sizeof length + length;
    ++count;
    if (at > data.size()) break;
  }
  return {count, at};
}

// Takes the first element off data that was counted.
inline std::string_view next_element(std::string_view& data) {
  std::uint32_t length = 0;
  std::memcpy(&length, data.data(), sizeof length);
  const std::string_view element = data.substr(sizeof length, length);
  data.remove_prefix(sizeof length + length);
  return element;
}

}  // namespace astrarium::protocol
