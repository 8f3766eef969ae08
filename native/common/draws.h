// Numbers as if by chance, the same for the same seed (SplitMix64, Steele et al. 2014).
#pragma once

#include <cstdint>

namespace astrarium::front {

class Draws {
 public:
  explicit Draws(std::uint64_t seed = 0) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t mixed = state_ += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
  }

  // From 0 up to, but without, 1.
  double share() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace astrarium::front
