// Twin of astrarium.serving.policies.nexus.plan: squishy bin packing. The Python file says what it means;
// the names and the order of every floating-point operation are the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "common/exact_sum.h"
#include "common/units.h"

namespace astrarium::nexus {

inline constexpr double kRounding = 1e-3;  // of a request: no reason to take a larger batch
inline constexpr double kNearly = 1e-6;    // of a GPU: not worth a replica
inline constexpr int kHalvings = 12;

struct Profile {
  int model;
  Time slo;
  const std::vector<Time>* costs;
  int largest;

  double cost(int batch) const { return static_cast<double>((*costs)[static_cast<std::size_t>(batch)]); }
  double peak() const { return largest / cost(largest); }
};

using Profiles = std::vector<Profile>;
using Rates = std::vector<double>;  // by model

struct Load {
  const Profile* profile;
  double rate, duty;

  int batch(double cycle) const {
    const double arriving = std::ceil(cycle * rate - kRounding);
    return static_cast<int>(std::min<double>(profile->largest, std::max(1.0, arriving)));
  }
  double occupancy(double cycle) const { return profile->cost(batch(cycle)) / cycle; }
};

struct Node {
  std::vector<Load> loads;
  double duty;

  explicit Node(std::vector<Load> of) : loads(std::move(of)), duty(loads[0].duty) {
    for (const Load& load : loads) duty = std::min(duty, load.duty);
  }

  double occupancy_with(const Load& load) const {
    const double cycle = std::min(duty, load.duty);
    ExactSum sum;
    for (const Load& other : loads) sum.add(other.occupancy(cycle));
    sum.add(load.occupancy(cycle));
    return sum.value();
  }
};

using Nodes = std::vector<Node>;

inline Load whole(const Profile& profile) { return {&profile, profile.peak(), profile.cost(profile.largest)}; }

inline Load residual(const Profile& profile, double rate) {
  const double slo = static_cast<double>(profile.slo);
  int batch = 1;
  while (batch < profile.largest && batch / rate + profile.cost(batch + 1) <= slo) ++batch;
  const double cost = profile.cost(batch);
  return {&profile, rate, std::max(cost, std::min(slo - cost, batch / rate))};
}

// Where the load fits most tightly; -1 if nowhere.
inline int fullest(const Nodes& nodes, const Load& load) {
  int place = -1;
  double most = 0;
  for (std::size_t candidate = 0; candidate < nodes.size(); ++candidate) {
    const double occupancy = nodes[candidate].occupancy_with(load);
    if (most < occupancy && occupancy <= 1) {
      place = static_cast<int>(candidate);
      most = occupancy;
    }
  }
  return place;
}

inline Nodes share(std::vector<Load> loads) {
  std::stable_sort(loads.begin(), loads.end(),
                   [](const Load& a, const Load& b) { return a.occupancy(a.duty) > b.occupancy(b.duty); });
  Nodes nodes;
  for (const Load& load : loads) {
    const int place = fullest(nodes, load);
    if (place < 0) {
      nodes.emplace_back(std::vector<Load>{load});
      continue;
    }
    Node& node = nodes[static_cast<std::size_t>(place)];
    node.loads.push_back(load);
    node.duty = std::min(node.duty, load.duty);
  }
  return nodes;
}

// The rates times `factor` on at most that many GPUs, if they fit.
inline std::optional<Nodes> pack(const Profiles& profiles, const Rates& rates, double factor, int gpus) {
  Nodes nodes;
  std::vector<Load> rest;
  for (const Profile& profile : profiles) {
    const double rate = rates[static_cast<std::size_t>(profile.model)] * factor, peak = profile.peak();
    const double full = std::trunc(rate / peak + kNearly);
    const int replicas = static_cast<int>(std::min<double>(full, gpus + 1));
    nodes.insert(nodes.end(), static_cast<std::size_t>(replicas), Node({whole(profile)}));
    const double left = rate - full * peak;
    if (full == 0 || left > kNearly * peak) rest.push_back(residual(profile, left));
  }
  std::stable_sort(nodes.begin(), nodes.end(), [](const Node& a, const Node& b) { return a.duty > b.duty; });
  for (Node& node : share(std::move(rest))) nodes.push_back(std::move(node));
  if (nodes.size() > static_cast<std::size_t>(gpus)) return std::nullopt;
  return nodes;
}

// Bisects for the largest factor not above `high` with which the rates fit.
inline std::optional<Nodes> pack_most(const Profiles& profiles, const Rates& rates, int gpus, double high) {
  std::optional<Nodes> best = pack(profiles, rates, high, gpus);
  if (best) return best;
  double low = 0;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    std::optional<Nodes> nodes = pack(profiles, rates, middle, gpus);
    (nodes ? low : high) = middle;
    if (nodes) best = std::move(nodes);
  }
  return best;
}

// Too many models for the GPUs to keep any duty cycle: all of them take turns on each GPU.
inline Nodes everywhere(const Profiles& profiles, int gpus) {
  ExactSum cycle;
  for (const Profile& profile : profiles) cycle.add(profile.cost(profile.largest));
  std::vector<Load> loads;
  for (const Profile& profile : profiles) loads.push_back({&profile, profile.peak(), cycle.value()});
  return Nodes(static_cast<std::size_t>(gpus), Node(loads));
}

// Leave no GPU unused, in part or whole: one that serves a single model is all that model's.
inline void fill(Nodes& nodes, const Profiles& profiles, const Rates& rates, int gpus) {
  std::vector<double> replicas(rates.size(), 0);
  for (Node& node : nodes) {
    if (node.loads.size() == 1) node = Node({whole(*node.loads[0].profile)});
    for (const Load& load : node.loads) ++replicas[static_cast<std::size_t>(load.profile->model)];
  }
  const auto pressure = [&](const Profile& profile) {
    const auto model = static_cast<std::size_t>(profile.model);
    return rates[model] / (profile.peak() * replicas[model]);
  };
  while (nodes.size() < static_cast<std::size_t>(gpus)) {
    const Profile* busiest = &profiles[0];
    for (const Profile& profile : profiles)
      if (pressure(profile) > pressure(*busiest)) busiest = &profile;
    nodes.emplace_back(std::vector<Load>{whole(*busiest)});
    ++replicas[static_cast<std::size_t>(busiest->model)];
  }
}

// At most one node for each GPU, and every model on one of them at least.
inline Nodes plan(const Profiles& profiles, const Rates& rates, int gpus, bool spread) {
  ExactSum needed;
  for (const Profile& profile : profiles) needed.add(rates[static_cast<std::size_t>(profile.model)] / profile.peak());
  const double ceiling = gpus / needed.value();
  std::optional<Nodes> nodes = pack_most(profiles, rates, gpus, spread ? ceiling : std::min(1.0, ceiling));
  if (!nodes) return everywhere(profiles, gpus);
  if (spread) fill(*nodes, profiles, rates, gpus);
  return *std::move(nodes);
}

}  // namespace astrarium::nexus
