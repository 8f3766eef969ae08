// SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed hash of 64 bits. Who does not know the key cannot make two inputs
// that have the same one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace astrarium::front {

struct SipKey {
  std::uint64_t first = 0, second = 0;
};

class SipHash {
 public:
  explicit SipHash(SipKey key)
      : v0_(key.first ^ 0x736f6d6570736575),
        v1_(key.second ^ 0x646f72616e646f6d),
        v2_(key.first ^ 0x6c7967656e657261),
        v3_(key.second ^ 0x7465646279746573) {}

  // The hash of these bytes; a hash is used once.
  std::uint64_t of(const char* bytes, std::size_t size) {
    const std::size_t words = size / 8;
    for (std::size_t i = 0; i < words; ++i) take(word(bytes + 8 * i, 8));
    take(word(bytes + 8 * words, size % 8) | static_cast<std::uint64_t>(size) << 56);
    v2_ ^= 0xff;
    for (int i = 0; i < 4; ++i) round();
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  static std::uint64_t word(const char* bytes, std::size_t size) {
    static_assert(std::endian::native == std::endian::little);
    std::uint64_t value = 0;
    std::memcpy(&value, bytes, size);
    return value;
  }

  void take(std::uint64_t word) {
    v3_ ^= word;
    round();
    round();
    v0_ ^= word;
  }

  void round() {
    v0_ += v1_;
    v1_ = std::rotl(v1_, 13) ^ v0_;
    v0_ = std::rotl(v0_, 32);
    v2_ += v3_;
    v3_ = std::rotl(v3_, 16) ^ v2_;
    v0_ += v3_;
    v3_ = std::rotl(v3_, 21) ^ v0_;
    v2_ += v1_;
    v1_ = std::rotl(v1_, 17) ^ v2_;
    v2_ = std::rotl(v2_, 32);
  }

  std::uint64_t v0_, v1_, v2_, v3_;
};

}  // namespace astrarium::front
