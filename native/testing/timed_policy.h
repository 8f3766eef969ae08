// Another policy with a stopwatch: how long each decision took in which something was dispatched.
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "policies/policy.h"

namespace astrarium {

struct Decisions {
  std::vector<Time> at;
  std::vector<std::int64_t> ns;
};

class TimedPolicy : public Policy {
 public:
  TimedPolicy(std::unique_ptr<Policy> policy, Decisions& decisions)
      : policy_(std::move(policy)), decisions_(decisions) {}

  bool listens_to_profiler() const override { return policy_->listens_to_profiler(); }

  // What it takes to enter the batches into the books is counted too.
  void decide(const Instant& instant, Books& books) override {
    const std::size_t batches = books.batches.size.size();
    const auto began = std::chrono::steady_clock::now();
    policy_->decide(instant, books);
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - began;
    if (books.batches.size.size() == batches) return;
    decisions_.at.push_back(instant.now);
    decisions_.ns.push_back(took.count());
  }

 private:
  std::unique_ptr<Policy> policy_;
  Decisions& decisions_;
};

}  // namespace astrarium
