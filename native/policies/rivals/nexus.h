// Twin of astrarium.serving.policies.nexus. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "policies/rivals/nexus_plan.h"
#include "policies/rivals/replicas.h"

namespace astrarium {

inline constexpr Time kSecond = 1000 * kMillisecond;

namespace nexus {

// One frontend's round robin over the replicas of one model.
class Ring {
 public:
  Ring(const std::vector<std::pair<int, double>>& weights, std::size_t start) : next_(start % weights.size()) {
    double largest = 0;
    for (const auto& [gpu, weight] : weights) largest = std::max(largest, weight);
    for (const auto& [gpu, weight] : weights) places_.push_back({gpu, weight / largest, 0.0});
  }

  int pick() {
    while (true) {
      Place& place = places_[next_];
      if (++next_ == places_.size()) next_ = 0;
      place.credit += place.quantum;
      if (place.credit < kEnough) continue;
      place.credit -= 1;
      return place.gpu;
    }
  }

 private:
  static constexpr double kEnough = 1 - 1e-9;  // a credit of one, were it not for rounding

  struct Place {
    int gpu;
    double quantum, credit;
  };

  std::vector<Place> places_;
  std::size_t next_;
};

}  // namespace nexus

class Nexus : public ReplicaScheduler {
 public:
  // `order` lists the models by name: the plan does not depend on the order in the scenario.
  Nexus(const Setup& setup, const Parameters& p)
      : ReplicaScheduler(setup),
        gpus_(setup.gpus),
        epoch_(p.integers.at("epoch")),
        frontends_(static_cast<std::size_t>(p.integers.at("frontends"))),
        spread_(p.integers.at("spread") != 0),
        rates_(models_, 1.0 / static_cast<double>(kSecond)),
        largest_(models_, 1),
        batches_(cell(setup.gpus, 0), 0),
        counts_(models_, 0) {
    for (const std::int64_t index : per_model(setup, p, "order")) {
      const int model = static_cast<int>(index);
      const Time slo = setup.models[static_cast<std::size_t>(model)].slo;
      const Time budget = slo - std::max(p.integers.at("reserve"), network_.response);
      const int largest = std::max(1, largest_within(costs(model), budget / 2));
      profiles_.push_back({model, slo, &costs(model), largest});
      largest_[static_cast<std::size_t>(model)] = largest;
    }
    make_plan();
  }

  void decide(const Instant& instant, Books& books) override {
    const Time now = instant.now;
    if (ends_ >= 0 && ends_ <= now) end_epoch(now);
    for (std::int64_t id = instant.first; id < instant.last; ++id)
      ++counts_[static_cast<std::size_t>(instant.arrivals.model[id])];
    ReplicaScheduler::decide(instant, books);
    if (ends_ >= 0 || !any_counted()) return;
    began_ = now;
    ends_ = now + (rates_known_ ? epoch_ : std::min(epoch_, kSecond));
    books.set_timer(now, ends_);
  }

 protected:
  int route(int model, std::int64_t request) override {
    const auto number = static_cast<std::uint32_t>(request);
    const std::size_t frontend = frontends_ > 1 ? scattered(number) % frontends_ : 0;
    return rings_[frontend * models_ + static_cast<std::size_t>(model)].pick();
  }

  std::pair<int, int> gather(Time now, int gpu, int model, const EntryQueue& queue) const override {
    const int waiting = queue.size(), planned = batches_[cell(gpu, model)];
    int size = std::min(planned ? planned : largest_[static_cast<std::size_t>(model)], waiting);
    int given_up = 0;
    while (given_up < waiting && queue.due(given_up) < now + costs(model)[static_cast<std::size_t>(size)])
      size = std::min(size, waiting - ++given_up);
    return {given_up, size};
  }

 private:
  using Weights = std::vector<std::vector<std::pair<int, double>>>;  // by model: GPU and throughput

  // Requests come to frontends as if by chance: an even spread would coordinate them.
  static std::uint32_t scattered(std::uint32_t number) {
    number = (number ^ number >> 16) * 0x7FEB352Du;
    number = (number ^ number >> 15) * 0x846CA68Bu;
    return number ^ number >> 16;
  }

  bool any_counted() const {
    return std::any_of(counts_.begin(), counts_.end(), [](std::int64_t count) { return count > 0; });
  }

  void end_epoch(Time now) {
    ends_ = -1;
    if (!any_counted()) return;
    const double length = static_cast<double>(now - began_);
    for (std::size_t model = 0; model < models_; ++model)
      rates_[model] = static_cast<double>(std::max<std::int64_t>(1, counts_[model])) / length;
    rates_known_ = true;
    counts_.assign(models_, 0);
    make_plan();
  }

  void make_plan() {
    const Weights weights = settle(nexus::plan(profiles_, rates_, gpus_, spread_ || !rates_known_));
    rings_.clear();
    for (std::size_t frontend = 0; frontend < frontends_; ++frontend)
      for (const auto& replicas : weights) rings_.emplace_back(replicas, frontend * replicas.size() / frontends_);
  }

  // A GPU for each node: one that ran many of its models already, else the next by id.
  Weights settle(nexus::Nodes open) {
    Weights weights(models_);
    for (int gpu = 0; gpu < gpus_; ++gpu) {
      const auto place = std::max_element(open.begin(), open.end(),
                                          [&](const auto& a, const auto& b) { return kept(gpu, a) < kept(gpu, b); });
      std::fill_n(batches_.begin() + static_cast<std::ptrdiff_t>(cell(gpu, 0)), models_, 0);
      if (place == open.end()) continue;
      for (const nexus::Load& load : place->loads) {
        const int model = load.profile->model, batch = load.batch(place->duty);
        batches_[cell(gpu, model)] = batch;
        weights[static_cast<std::size_t>(model)].emplace_back(gpu, batch / place->duty);
      }
      open.erase(place);
    }
    return weights;
  }

  std::ptrdiff_t kept(int gpu, const nexus::Node& node) const {
    return std::count_if(node.loads.begin(), node.loads.end(),
                         [&](const nexus::Load& load) { return batches_[cell(gpu, load.profile->model)] > 0; });
  }

  int gpus_;
  Time epoch_;
  std::size_t frontends_;
  bool spread_;
  nexus::Profiles profiles_;
  nexus::Rates rates_;
  bool rates_known_ = false;
  std::vector<int> largest_, batches_;  // by model; planned, by GPU and model (0: not planned)
  std::vector<nexus::Ring> rings_;      // by frontend and model
  std::vector<std::int64_t> counts_;
  Time began_ = 0, ends_ = -1;
};

inline std::unique_ptr<Policy> make_nexus(const Setup& setup, const Parameters& p) {
  return std::make_unique<Nexus>(setup, p);
}

}  // namespace astrarium
