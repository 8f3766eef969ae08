// Twin of astrarium.serving.policies.astrarium.pressure. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/units.h"

namespace astrarium {

inline constexpr double kReserve = 2.0, kRisk = 7.0, kSaves = 0.8, kRest = 0.2, kHold = 0.7, kEnough = 0.85;
inline constexpr double kSure = 3.0, kTolerable = 0.02, kOverload = 0.05, kWaste = 2.0;
inline constexpr double kPriceless = std::numeric_limits<double>::infinity();
inline constexpr int kHalvings = 24;

struct Demand {
  double rate, dispersion;
  int target;
  Time time, fixed, slo;

  double size(double price) const {
    return std::min(std::max(1.0, std::sqrt(price * static_cast<double>(fixed) * rate)), static_cast<double>(target));
  }
  double request_time(double price) const {
    return static_cast<double>(time - fixed) / target + static_cast<double>(fixed) / size(price);
  }
  double company() const { return rate + std::max(0.0, dispersion - 1.0) / (2.0 * static_cast<double>(slo)); }
  Time wait_for(double size) const {
    return size > 1.0 ? static_cast<Time>(std::min((size - 1.0) / company(), static_cast<double>(kForever))) : 0;
  }
  double highest_price() const {
    const double launches = static_cast<double>(fixed) * rate;
    return launches > 0.0 ? static_cast<double>(target * target) / launches : 0.0;
  }
};

struct Climate {
  double price = 0, overload = 0, noise = 0;

  double scarcity() const { return price < kPriceless ? price / (1.0 + price) : 1.0; }
};

struct Stance {
  Time wait;
  double patience;
  int hold, enough;
  double price;
};

inline double ramp(double value, double low, double high) {
  if (value <= low) return 0.0;
  return value < high ? (value - low) / (high - low) : 1.0;
}

struct Load {
  double mean, deviation;
};

inline Load load_of(const std::vector<Demand>& demands, double price) {
  double mean = 0, variance = 0;
  for (const Demand& demand : demands) {
    const double request = demand.request_time(price);
    mean += demand.rate * request;
    variance += request * request * demand.dispersion * demand.rate / static_cast<double>(demand.slo);
  }
  return {mean, std::sqrt(variance)};
}

inline bool fits(const std::vector<Demand>& demands, double price, int gpus) {
  const Load load = load_of(demands, price);
  return load.mean + kReserve * load.deviation <= gpus;
}

inline double lowest_price(const std::vector<Demand>& demands, double highest, int gpus) {
  if (fits(demands, 0.0, gpus)) return 0.0;
  if (!fits(demands, highest, gpus)) return kPriceless;
  double low = 0, high = highest;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2.0;
    (fits(demands, middle, gpus) ? high : low) = middle;
  }
  return high;
}

inline Climate climate_of(const std::vector<Demand>& demands, int gpus, double lost) {
  gpus = std::max(1, gpus);
  double highest = 0;
  for (const Demand& demand : demands) highest = std::max(highest, demand.highest_price());
  const double deviation = load_of(demands, highest).deviation;
  return {lowest_price(demands, highest, gpus), ramp(lost, kTolerable, kOverload), deviation / gpus};
}

inline double worthwhile(const Demand& demand, const Climate& climate) {
  const double risk = (1.0 - climate.overload) * kRisk * climate.noise + climate.overload * kSaves;
  const double launches = demand.company() * static_cast<double>(demand.fixed);
  return risk > 0.0 ? launches / risk : launches > 0.0 ? kPriceless : 0.0;
}

inline Time wait_of(const Demand& demand, const Climate& climate, double worth) {
  if (climate.price < kPriceless) worth = std::min(worth, demand.size(climate.price));
  return demand.wait_for(worth);
}

inline int share_of(int target, double part, double doubt) {
  const double missing = (1.0 - part) * doubt;
  return target - static_cast<int>(missing * std::max(0, target - 2) + 0.3);
}

inline Stance stance_of(const Demand& demand, const Climate& climate, bool few_gpus) {
  const double worth = worthwhile(demand, climate);
  const double doubt = (1.0 - climate.overload) * std::min(1.0, worth > 0.0 ? kSure * demand.target / worth : 1.0);
  return {few_gpus && climate.price < kPriceless ? kForever : wait_of(demand, climate, worth), 1.0 - kRest * doubt,
          share_of(demand.target, kHold, doubt), share_of(demand.target, kEnough, doubt), kWaste * climate.scarcity()};
}

}  // namespace astrarium
