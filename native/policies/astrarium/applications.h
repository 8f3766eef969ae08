// Twin of astrarium.serving.policies.astrarium.applications. The Python file says what it means; the names are the
// same.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "policies/astrarium/groups.h"
#include "policies/learnt_times.h"

namespace astrarium {

inline constexpr Time kRefresh = 1000 * kMillisecond;

class Applications final : public Groups {
 public:
  Applications(const Model& model, Time memory, Grouping grouping)
      : Applications(model, LearntTimes(model, kBins, memory, kRefresh), grouping) {}

  LearntTimes times;

  void arrived(Time now, int application) {
    if (!std::exchange(begun_, true)) times.begin(now);
    times.arrived(now, application);
    RateMeter& meter = meters[static_cast<std::size_t>(application)];
    meter.roll(now);
    meter.count();
  }

  Group ranked() const override {
    std::vector<std::pair<Time, int>> by_time;
    for (int place = 0; place < std::ssize(meters); ++place) by_time.emplace_back(time({place}, 1), place);
    std::sort(by_time.begin(), by_time.end());
    Group order;
    for (const auto& [time, place] : by_time) order.push_back(place);
    return order;
  }

  Time time(const Group& group, int size) const override { return times.time(group, size, kSafe); }
  int largest(const Group&) const override { return model_.max_batch(); }
  std::vector<Time> table(const Group& group) const override { return times.table(group, kSafe); }

 private:
  static constexpr Time kBins = 32;

  Applications(const Model& model, LearntTimes learnt, Grouping grouping)
      : Groups(learnt.applications(), model.slo, grouping, !learnt.known()), times(std::move(learnt)), model_(model) {}

  const Model& model_;
  bool begun_ = false;
};

}  // namespace astrarium
