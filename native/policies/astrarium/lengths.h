// Twin of astrarium.serving.policies.astrarium.lengths. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "policies/books.h"

namespace astrarium {

class WaitingLengths {
 public:
  explicit WaitingLengths(const Lengths& lengths)
      : lengths(lengths),
        rates(lengths.longest.size()),
        exact_(lengths.together == Together::kLength),
        by_bucket_(lengths.longest.size()) {}

  int kind(const Arrivals& arrivals, std::int64_t id) const {
    return exact_ ? arrivals.length[id] : arrivals.bucket[id];
  }

  void count(const Arrivals& arrivals, std::int64_t id, int change) {
    if (!exact_) {
      by_bucket_[static_cast<std::size_t>(arrivals.bucket[id])] += change;
      return;
    }
    const auto known = by_length_.try_emplace(arrivals.length[id], 0).first;
    known->second += change;
    if (known->second == 0) by_length_.erase(known);
  }

  int alike(const Arrivals& arrivals, std::int64_t id, Time now, Time due) const {
    const int bucket = arrivals.bucket[id], most = lengths.max_batch(bucket);
    const int waiting = exact_ ? by_length_.at(arrivals.length[id]) : by_bucket_[static_cast<std::size_t>(bucket)];
    const double coming = rates[static_cast<std::size_t>(bucket)] * static_cast<double>(due - now);
    return coming >= most ? most : std::min(waiting + static_cast<int>(coming), most);
  }

  const Lengths& lengths;
  std::vector<double> rates;  // of each bucket

 private:
  bool exact_;
  std::vector<int> by_bucket_;
  std::unordered_map<std::int32_t, int> by_length_;
};

class Crew {
 public:
  Crew(const Arrivals& arrivals, std::int64_t first, Time due, const WaitingLengths& waiting, const Network& network)
      : takes(waiting.lengths.time(arrivals.bucket[first], 1)),
        arrivals_(arrivals),
        waiting_(waiting),
        network_(network),
        kind_(waiting.kind(arrivals, first)),
        due_(due),
        bucket_(arrivals.bucket[first]) {}

  int size = 1;
  Time takes;

  int kind(std::int64_t id) const { return waiting_.kind(arrivals_, id); }

  bool admits(std::int64_t id, Time due, Time now, Time free) {
    const Lengths& lengths = waiting_.lengths;
    const int own = arrivals_.bucket[id], bucket = std::max(bucket_, own);
    if (lengths.together != Together::kPadded && kind(id) != kind_) return false;
    if (size >= lengths.max_batch(bucket)) return false;
    const Time longer = lengths.time(bucket, size + 1), start = std::max(now + network_.delay(size + 1), free);
    if (start + longer > std::min(due, due_)) return false;
    if (own != bucket_ && !pays(id, longer, now, due)) return false;
    due_ = std::min(due, due_);
    bucket_ = bucket;
    takes = longer;
    ++size;
    return true;
  }

 private:
  // The batch grows by no more than the request would cost among its like.
  bool pays(std::int64_t id, Time longer, Time now, Time due) const {
    const int alike = waiting_.alike(arrivals_, id, now, due);
    return (longer - takes) * alike <= waiting_.lengths.time(arrivals_.bucket[id], alike);
  }

  const Arrivals& arrivals_;
  const WaitingLengths& waiting_;
  const Network& network_;
  int kind_;
  Time due_;
  int bucket_;
};

// Requests of another queue that are in a batch.
struct Guests {
  int queue, count;
};

}  // namespace astrarium
