// Twin of astrarium.serving.policies._pressure. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "units.h"

namespace astrarium {

inline constexpr double kReserve = 2.0, kPlenty = 0.7, kScarce = 0.9, kNotWorth = 4.5, kWorth = 7.0;
inline constexpr double kQuiet = 0.03, kLoud = 0.05, kPatience = 0.8, kBurst = 3.5, kLargeBurst = 4.5;
inline constexpr Time kShortest = 5 * kMillisecond;
inline constexpr double kPays = 0.6, kPaysWell = 1.0, kSure = 1.5, kSurest = 2.5;
inline constexpr double kSaves = 0.4, kSavesMuch = 0.6, kSavesMost = 0.9, kEnough = 0.85, kHold = 0.7;
inline constexpr double kTolerable = 0.02, kOverload = 0.05, kCheap = 1.0, kDear = 3.0, kWeak = 0.5, kStrong = 1.0;

struct Demand {
  double rate, dispersion;
  int target;
  Time time, fixed, slo;

  double each() const { return static_cast<double>(time) / target; }
  double gain() const { return rate * static_cast<double>(fixed) / (target + 1); }
  double burst_gain() const {
    const double window = static_cast<double>(std::max(slo - time, kShortest));
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
  if (value <= low) return 0.0;
  return value < high ? (value - low) / (high - low) : 1.0;
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
  return {ramp(mean + kReserve * noise, kPlenty, kScarce), ramp(lost, kTolerable, kOverload), noise};
}

inline double quiet_of(const Climate& climate) { return 1.0 - ramp(climate.noise, kQuiet, kLoud); }

inline double patience_of(const Demand& demand, const Climate& climate) {
  const double gain = demand.gain(), calm = 1.0 - climate.overload, noise = climate.noise;
  const double quiet = quiet_of(climate), burst = ramp(demand.burst_gain(), kBurst, kLargeBurst);
  const double bet = std::max({ramp(gain, kNotWorth * noise, kWorth * noise), quiet, burst});
  const double worth = calm * bet + climate.overload * ramp(gain, kSaves, kSavesMuch);
  const double in_overload = climate.overload * ramp(gain, kSaves, kSavesMost);
  const double farther = std::max({in_overload, quiet * ramp(gain, kPays, kPaysWell), ramp(gain, kSure, kSurest)});
  const double most = kPatience + (1.0 - kPatience) * farther;
  return most * (1.0 - climate.scarcity * (1.0 - worth));
}

inline int share_of(int target, double part, double insist) {
  const double missing = (1.0 - part) * (1.0 - insist);
  return target - static_cast<int>(missing * std::max(0, target - 2) + 0.3);
}

inline Stance stance_of(const Demand& demand, const Climate& climate) {
  const double price = (kCheap + (kDear - kCheap) * ramp(demand.gain(), kWeak, kStrong)) * climate.scarcity;
  const double insist = std::max(climate.overload, quiet_of(climate) * ramp(demand.gain(), kPays, kPaysWell));
  return {patience_of(demand, climate), share_of(demand.target, kHold, insist),
          share_of(demand.target, kEnough, insist), price};
}

}  // namespace astrarium
