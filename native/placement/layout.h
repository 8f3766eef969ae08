// What both kernels work on: forms by kind of group, groups, who is on them, and requests.
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
  const std::int32_t* kind;    // of each group
  const std::int32_t* stages;  // of each group
  const std::uint8_t* hosts;   // [group][model]
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
  Time fixed;     // added to every answer
  bool by_queue;  // dispatch to the shortest queue instead of the earliest last stage
  bool another;   // try the next group where one would be late
  bool edf;       // earliest deadline first, among those that wait
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

// Unfinished requests of a group that finishes them in order: a ring of their ends. The next end is kept at hand,
// for most questions come before it.
template <typename Time>
class Unfinished {
 public:
  void add(Time finish) {
    if (size_ == ring_.size()) grow();
    ring_[(head_ + size_++) & (ring_.size() - 1)] = finish;
    if (size_ == 1) next_ = finish;
  }
  std::int64_t count(Time now) {
    while (size_ > 0 && next_ <= now) {
      head_ = (head_ + 1) & (ring_.size() - 1);
      next_ = ring_[head_];
      --size_;
    }
    return static_cast<std::int64_t>(size_);
  }

 private:
  void grow() {
    std::vector<Time> larger(ring_.size() * 2);
    for (std::size_t place = 0; place < size_; ++place) larger[place] = ring_[(head_ + place) & (ring_.size() - 1)];
    ring_.swap(larger);
    head_ = 0;
  }

  std::vector<Time> ring_ = std::vector<Time>(16);
  std::size_t head_ = 0, size_ = 0;
  Time next_{};
};

}  // namespace astrarium::placement
