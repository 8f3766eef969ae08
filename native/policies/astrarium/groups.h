// Twin of astrarium.serving.policies.astrarium.groups. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/exact_sum.h"
#include "policies/rate_meter.h"

namespace astrarium {

inline constexpr double kSafe = 0.9;

enum class Grouping { kGrouped, kApplication, kModel };

using Group = std::vector<int>;

class Groups {
 public:
  Groups(std::size_t kinds, Time slo, Grouping grouping, bool unknown) : meters(kinds), slo_(slo), grouping_(grouping) {
    Group everybody(kinds);
    std::iota(everybody.begin(), everybody.end(), 0);
    const bool apart = grouping == Grouping::kApplication || (grouping == Grouping::kGrouped && unknown);
    for (const int place : everybody)
      if (apart || place == 0) groups.push_back(apart ? Group{place} : everybody);
  }
  virtual ~Groups() = default;
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  std::vector<RateMeter> meters;
  std::vector<Group> groups;

  virtual Group ranked() const = 0;
  virtual Time time(const Group& group, int size) const = 0;
  virtual int largest(const Group& group) const = 0;
  virtual std::vector<Time> table(const Group& group) const = 0;

  virtual bool regroup(Time now) {
    if (grouping_ != Grouping::kGrouped || meters.size() < 2) return false;
    for (RateMeter& meter : meters) meter.roll(now);
    std::vector<Group> cheapest = cheapest_cut(ranked());
    if (demand(cheapest) >= kWorthMoving * demand(groups)) return false;
    groups = std::move(cheapest);
    return true;
  }

 private:
  static constexpr double kWorthMoving = 0.9, kRounding = 1e-9;

  struct Cut {
    double total = 0.0;
    std::vector<Group> groups{};
  };

  std::vector<Group> cheapest_cut(const Group& ranked) const {
    std::vector<Cut> best(1);
    for (std::ptrdiff_t end = 1; end <= std::ssize(ranked); ++end) {
      std::vector<Cut> choices;
      for (std::ptrdiff_t start = 0; start < end; ++start) {
        Group group(ranked.begin() + start, ranked.begin() + end);
        std::sort(group.begin(), group.end());
        Cut choice = best[static_cast<std::size_t>(start)];
        choice.total += demand(group);
        choice.groups.push_back(std::move(group));
        choices.push_back(std::move(choice));
      }
      best.push_back(fewest(choices));
    }
    return best.back().groups;
  }

  // Of the cuts that cost the least, the first into the fewest groups.
  static const Cut& fewest(const std::vector<Cut>& choices) {
    double least = choices[0].total;
    for (const Cut& cut : choices) least = std::min(least, cut.total);
    const Cut* best = nullptr;
    for (const Cut& cut : choices)
      if (cut.total <= (1 + kRounding) * least && (!best || cut.groups.size() < best->groups.size())) best = &cut;
    return *best;
  }

  double demand(const std::vector<Group>& cut) const {
    ExactSum sum;
    for (const Group& group : cut) sum.add(demand(group));
    return sum.value();
  }

  double demand(const Group& group) const {
    ExactSum sum;
    for (const int place : group) sum.add(meters[static_cast<std::size_t>(place)].rate());
    const double rate = sum.value();
    const auto waited = static_cast<std::int64_t>(rate * static_cast<double>(slo_) / 2);
    const int size = static_cast<int>(std::min<std::int64_t>(largest(group), std::max<std::int64_t>(1, waited)));
    return rate * static_cast<double>(time(group, size)) / size;
  }

  Time slo_;
  Grouping grouping_;
};

}  // namespace astrarium
