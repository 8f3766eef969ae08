// What has to hold; the program ends where it does not.
#pragma once

#include <cstdio>
#include <cstdlib>

#define MUST(condition) \
  if (!(condition))     \
  std::fprintf(stderr, "broken: %s (line %d)\n", #condition, __LINE__), std::perror("errno"), std::abort()
