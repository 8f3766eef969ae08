// Memory that is given back: assigning an empty string to one keeps what it has.
#pragma once

#include <cstddef>
#include <string>

namespace astrarium::protocol {

// Empties a text, and gives its memory back where that is more than *kept* bytes.
inline void trim(std::string& text, std::size_t kept = 0) {
  if (text.capacity() > kept) std::string().swap(text);
  else text.clear();
}

}  // namespace astrarium::protocol
