// What both kernels are told: forms by kind of group, groups, who is on them, and requests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace astrarium::placement {

// Everywhere below, Time is std::int64_t (nanoseconds) or double (seconds, as the authors of AlpaServe count).
inline constexpr int kRejected = -1;

// `times[kind][model][batch][stage]`, flat; batches from 1. A group's kind says which shape it has.
template <typename Time>
struct Forms {
  const Time* times;
  std::int64_t models, batches, width;  // width: stages of the longest pipeline

  const Time* row(std::int64_t kind, std::int64_t model, std::int64_t batch = 1) const {
    return times + ((kind * models + model) * batches + (batch - 1)) * width;
  }
};

struct Groups {
  std::int64_t count;
  const std::int32_t* kind;       // of each group
  const std::int32_t* stages;     // of each group
  const std::uint8_t* hosts;      // [group][model]
};

template <typename Time>
struct Requests {
  std::int64_t count;
  const Time* arrival;
  const std::int32_t* model;
  const Time* slo;  // of each model
};

template <typename Time>
struct Rules {
  Time fixed;        // added to every answer
  bool by_queue;     // dispatch to the shortest queue instead of the earliest last stage
  bool another;      // try the next group where one would be late
  bool edf;          // earliest deadline first, among those that wait
};

// The groups of each model, in order.
class Hosts {
 public:
  Hosts(const Groups& groups, std::int64_t models) : starts_(models + 1) {
    for (std::int64_t model = 0; model < models; ++model) {
      starts_[model] = static_cast<std::int32_t>(groups_.size());
      for (std::int64_t group = 0; group < groups.count; ++group)
        if (groups.hosts[group * models + model]) groups_.push_back(static_cast<std::int32_t>(group));
    }
    starts_[models] = static_cast<std::int32_t>(groups_.size());
  }
  const std::int32_t* begin(std::int64_t model) const { return groups_.data() + starts_[model]; }
  const std::int32_t* end(std::int64_t model) const { return groups_.data() + starts_[model + 1]; }

 private:
  std::vector<std::int32_t> starts_, groups_;
};

// Unfinished requests of a group that finishes them in order.
template <typename Time>
class Unfinished {
 public:
  void add(Time finish) { finishes_.push_back(finish); }
  std::int64_t count(Time now) {
    while (head_ < finishes_.size() && finishes_[head_] <= now) ++head_;
    if (head_ > 4096 && head_ * 2 > finishes_.size()) {
      finishes_.erase(finishes_.begin(), finishes_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
    return static_cast<std::int64_t>(finishes_.size() - head_);
  }

 private:
  std::vector<Time> finishes_;
  std::size_t head_ = 0;
};

}  // namespace astrarium::placement
