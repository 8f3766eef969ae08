// Twin of astrarium.serving.policies.astrarium.lengths. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "policies/astrarium/groups.h"
#include "policies/books.h"

namespace astrarium {

// The largest batch in which a request takes hardly more of the GPU than in any.
inline int well_used(const std::vector<Time>& latency) {
  constexpr double kHardlyMore = 1.01;
  const int largest = static_cast<int>(latency.size()) - 2;
  const auto share = [&](int size) { return static_cast<double>(latency[static_cast<std::size_t>(size)]) / size; };
  double least = share(1);
  for (int size = 2; size <= largest; ++size) least = std::min(least, share(size));
  int size = largest;
  while (share(size) > kHardlyMore * least) --size;
  return size;
}

class Buckets final : public Groups {
 public:
  Buckets(const Lengths& lengths, Time slo, Grouping grouping)
      : Groups(lengths.longest.size(), slo, lengths.together == Together::kPadded ? grouping : Grouping::kApplication,
               true),
        lengths(lengths),
        rates_(lengths.longest.size() + 1) {
    for (const std::vector<Time>& latency : lengths.latency) most_.push_back(well_used(latency));
  }

  const Lengths& lengths;

  int most(int bucket) const { return most_[static_cast<std::size_t>(bucket)]; }

  void arrived(Time now, int bucket) {
    RateMeter& meter = meters[static_cast<std::size_t>(bucket)];
    meter.roll(now);
    meter.count();
  }

  bool regroup(Time now) override {
    for (std::size_t bucket = 0; bucket < meters.size(); ++bucket) {
      meters[bucket].roll(now);
      rates_[bucket + 1] = rates_[bucket] + meters[bucket].rate();
    }
    return Groups::regroup(now);
  }

  Group ranked() const override {
    Group order(meters.size());
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
  Time time(const Group& group, int size) const override { return lengths.time(longest(group, size), size); }
  int largest(const Group& group) const override { return most(group.back()); }

  std::vector<Time> table(const Group& group) const override {
    std::vector<Time> times{0};
    for (int size = 1; size <= most(longest(group, size)); ++size)
      times.push_back(std::max(times.back(), time(group, size)));
    times.push_back(kForever);
    return times;
  }

 private:
  // The bucket that no member of a batch exceeds, with a chance.
  int longest(const Group& group, int size) const {
    const double before = rates_[static_cast<std::size_t>(group.front())];
    const double share = (shorter_than(group.back() + 1) - before) * std::pow(kSafe, 1.0 / size);
    if (share <= 0.0) return group.back();
    for (const int bucket : group)
      if (shorter_than(bucket + 1) - before >= share) return bucket;
    return group.back();
  }

  double shorter_than(int bucket) const { return rates_[static_cast<std::size_t>(bucket)]; }

  std::vector<int> most_;      // by bucket
  std::vector<double> rates_;  // of all shorter buckets, by bucket
};

// What requests have in common that may share a run where only equal ones do.
inline std::int64_t kind_of(const Lengths& lengths, const Arrivals& arrivals, std::int64_t id) {
  return lengths.together == Together::kLength ? arrivals.length[id] : arrivals.bucket[id];
}

class Crew {
 public:
  Crew(const Arrivals& arrivals, std::int64_t first, Time due, const Buckets& buckets, const Network& network)
      : takes(buckets.lengths.time(arrivals.bucket[first], 1)),
        arrivals_(arrivals),
        buckets_(buckets),
        lengths_(buckets.lengths),
        network_(network),
        kind_(kind(first)),
        due_(due),
        bucket_(arrivals.bucket[first]) {}

  int size = 1;
  Time takes;

  std::int64_t kind(std::int64_t id) const { return kind_of(lengths_, arrivals_, id); }

  // `share()` is what the request would cost in a batch of its queue.
  template <class Share>
  bool admits(std::int64_t id, Time due, Time now, Time free, Share share) {
    const int own = arrivals_.bucket[id], bucket = std::max(bucket_, own);
    if (lengths_.together != Together::kPadded && kind(id) != kind_) return false;
    if (size >= buckets_.most(bucket)) return false;
    const Time longer = lengths_.time(bucket, size + 1), start = std::max(now + network_.delay(size + 1), free);
    if (start + longer > std::min(due, due_)) return false;
    if (own != bucket_ && static_cast<double>(longer - takes) > share()) return false;
    due_ = std::min(due, due_);
    bucket_ = bucket;
    takes = longer;
    ++size;
    return true;
  }

 private:
  const Arrivals& arrivals_;
  const Buckets& buckets_;
  const Lengths& lengths_;
  const Network& network_;
  std::int64_t kind_;
  Time due_;
  int bucket_;
};

// Requests of another queue that are in a batch.
struct Guests {
  int queue, count;
};

}  // namespace astrarium
