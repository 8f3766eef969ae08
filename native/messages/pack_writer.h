// Writes what we need of MessagePack.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace astrarium::protocol {

class PackWriter {
 public:
  explicit PackWriter(std::string& out) : out_(out) {}

  void array(std::size_t size) {
    if (size < 16) return byte(0x90 | size);
    if (size < 1 << 16) return tagged(0xdc, size, 2);
    tagged(0xdd, size, 4);
  }

  void number(std::uint64_t value) {
    if (value < 0x80) return byte(value);
    tagged(0xcf, value, 8);
  }

  void text(std::string_view short_text) {  // of at most 31 bytes
    byte(0xa0 | short_text.size());
    out_ += short_text;
  }

  void long_text(std::string_view text) {
    tagged(0xdb, text.size(), 4);
    out_ += text;
  }

  void nil() { byte(0xc0); }

  // The caller appends that many bytes.
  void binary(std::size_t size) { tagged(0xc6, size, 4); }

 private:
  void byte(std::uint64_t value) { out_ += static_cast<char>(value); }

  void tagged(std::uint64_t tag, std::uint64_t value, int bytes) {
    byte(tag);
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) byte(value >> shift & 0xff);
  }

  std::string& out_;
};

}  // namespace astrarium::protocol
