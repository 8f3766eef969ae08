// The contract of a native twin: what happened at an instant comes in, decisions go to the books.
#pragma once

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "policies/books.h"

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

// One of the lists: one number for each model.
inline const std::vector<std::int64_t>& per_model(const Setup& setup, const Parameters& p, const std::string& name) {
  const std::vector<std::int64_t>& values = p.lists.at(name);
  if (values.size() != setup.models.size()) throw std::invalid_argument(name + " must have one number for each model");
  return values;
}

class Policy {
 public:
  virtual ~Policy() = default;
  virtual void decide(const Instant& instant, Books& books) = 0;

  // Whether RequestProfiled should come: every one is an instant to decide in.
  virtual bool listens_to_profiler() const { return false; }
};

}  // namespace astrarium
