// The contract of a native twin: what happened at an instant comes in, decisions go to the books.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "books.h"

namespace astrarium {

// Requests [first, last) arrived; `events` are already applied to the books.
struct Instant {
  Time now;
  std::int64_t first, last;
  const std::vector<Event>& events;
  const Arrivals& arrivals;
};

// A policy's parameters as its Python reference translates them (`native_parameters`).
struct Parameters {
  std::string policy;
  std::map<std::string, std::int64_t> integers;
  std::map<std::string, double> reals;
  std::map<std::string, std::vector<std::int64_t>> lists;
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual void decide(const Instant& instant, Books& books) = 0;
};

}  // namespace astrarium
