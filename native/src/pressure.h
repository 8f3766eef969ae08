// Twin of astrarium.serving.policies._pressure. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "units.h"

namespace astrarium {

struct Demand {
  double rate, dispersion;
  int target;
  Time time, fixed, slo;

  double each() const { return static_cast<double>(time) / target; }
  double gain() const { return rate * static_cast<double>(fixed) / (target + 1); }
  double burst_gain() const {
    const double window = static_cast<double>(std::max<Time>(slo - time, 5'000'000));
    return (rate + std::max(0.0, dispersion - 1.0) / window) * static_cast<double>(fixed) / (target + 1);
  }
};

struct Climate {
  double scarcity = 0, overload = 0, noise = 0;
};

struct Stance {
  double patience;
  int hold, enough;
  double price;
};

inline double ramp(double value, double low, double high) {
  if (low >= high) return value > low ? 1.0 : 0.0;
  return std::min(1.0, std::max(0.0, (value - low) / (high - low)));
}

inline Climate climate_of(const std::vector<Demand>& demands, int gpus, double lost) {
  double mean = 0, variance = 0;
  for (const Demand& demand : demands) {
    const double each = demand.each();
    mean += demand.rate * each;
    variance += each * each * demand.dispersion * demand.rate / static_cast<double>(demand.slo);
  }
  mean /= gpus;
  const double noise = std::sqrt(variance) / gpus;
  return {ramp(mean + 2.0 * noise, 0.7, 0.9), ramp(lost, 0.02, 0.05), noise};
}

inline double quiet_of(const Climate& climate) { return 1.0 - ramp(climate.noise, 0.03, 0.05); }

inline double patience_of(const Demand& demand, const Climate& climate) {
  const double gain = demand.gain(), calm = 1.0 - climate.overload, noise = climate.noise;
  const double quiet = quiet_of(climate), burst = ramp(demand.burst_gain(), 3.5, 4.5);
  const double bet = std::max({ramp(gain, 4.5 * noise, 7.0 * noise), quiet, burst});
  const double worth = calm * bet + climate.overload * ramp(gain, 0.4, 0.6);
  const double farther =
      std::max({climate.overload * ramp(gain, 0.4, 0.9), quiet * ramp(gain, 0.6, 1.0), ramp(gain, 1.5, 2.5)});
  const double most = 0.8 + (1.0 - 0.8) * farther;
  return most * (1.0 - climate.scarcity * (1.0 - worth));
}

inline int share_of(int target, double part, double insist) {
  const double missing = (1.0 - part) * (1.0 - insist);
  return target - static_cast<int>(missing * std::max(0, target - 2) + 0.3);
}

inline Stance stance_of(const Demand& demand, const Climate& climate) {
  const double price = (1.0 + (3.0 - 1.0) * ramp(demand.gain(), 0.5, 1.0)) * climate.scarcity;
  const double insist = std::max(climate.overload, quiet_of(climate) * ramp(demand.gain(), 0.6, 1.0));
  return {patience_of(demand, climate), share_of(demand.target, 0.7, insist), share_of(demand.target, 0.85, insist),
          price};
}

}  // namespace astrarium
