// Drives a target, whose made() returns inputs that are nearly right: chance alone seldom writes one. libFuzzer begins
// with such an input now and then; without it (-DALONE) there are only these, as many as the program is told.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

namespace {
std::string make_input(std::mt19937& random);
}

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

#ifdef ALONE
int main(int count, char** words) {
  const long times = count > 1 ? std::atol(words[1]) : 10'000;
  std::mt19937 random(count > 2 ? static_cast<unsigned>(std::atol(words[2])) : 1);
  for (long i = 0; i < times; ++i) {
    const std::string data = make_input(random);
    LLVMFuzzerTestOneInput(reinterpret_cast<const unsigned char*>(data.data()), data.size());
  }
  std::printf("%ld inputs\n", times);
}
#else
extern "C" std::size_t LLVMFuzzerMutate(unsigned char* data, std::size_t size, std::size_t most);

extern "C" std::size_t LLVMFuzzerCustomMutator(unsigned char* data, std::size_t size, std::size_t most, unsigned seed) {
  if (seed % 8 != 0) return LLVMFuzzerMutate(data, size, most);
  std::mt19937 random(seed);
  const std::string fresh = make_input(random);
  const std::size_t kept = std::min(fresh.size(), most);
  return std::memcpy(data, fresh.data(), kept), kept;
}
#endif
