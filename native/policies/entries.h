// Twin of astrarium.serving.policies._entries: waiting requests by (deadline, id), what the queues of
// Symphony's rivals are made of. The deadline is the one for the end of execution.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "policies/books.h"

namespace astrarium {

// Two columns rather than pairs: a batch is then a stretch of ids, ready to be dispatched.
class EntryQueue {
 public:
  int size() const { return static_cast<int>(static_cast<std::ptrdiff_t>(due_.size()) - head_); }
  bool empty() const { return size() == 0; }
  Time due(int place = 0) const { return due_[static_cast<std::size_t>(head_ + place)]; }
  const std::int64_t* ids() const { return ids_.data() + head_; }
  std::pair<Time, std::int64_t> head() const { return {due(), *ids()}; }

  void insert(Time due, std::int64_t id) {
    std::ptrdiff_t place = static_cast<std::ptrdiff_t>(due_.size());
    while (place > head_ && after(place - 1, due, id)) --place;  // nearly always none: arrivals come in order
    due_.insert(due_.begin() + place, due);
    ids_.insert(ids_.begin() + place, id);
  }

  // How many heads have a deadline before `moment`, known to be at least `first`.
  int due_before(Time moment, int first = 0) const {
    const int count = size();
    if (first == count || due(first) >= moment) return first;
    const auto begin = due_.begin() + head_;
    return static_cast<int>(std::lower_bound(begin + first + 1, due_.end(), moment) - begin);
  }

  // Take the first entries off.
  void cut(int count) {
    head_ += count;
    if (head_ < 256 || 2 * head_ < static_cast<std::ptrdiff_t>(due_.size())) return;
    due_.erase(due_.begin(), due_.begin() + head_);
    ids_.erase(ids_.begin(), ids_.begin() + head_);
    head_ = 0;
  }

  // Give the first entries up; those due at `saveable_from` or later could still have run alone.
  void drop(Time now, int count, Time saveable_from, Books& books) {
    for (int i = 0; i < count; ++i) books.drop(now, ids()[i], due(i) >= saveable_from ? kSacrificed : kExpired);
    cut(count);
  }

 private:
  bool after(std::ptrdiff_t place, Time due, std::int64_t id) const {
    const auto row = static_cast<std::size_t>(place);
    return due_[row] > due || (due_[row] == due && ids_[row] > id);
  }

  std::vector<Time> due_;
  std::vector<std::int64_t> ids_;
  std::ptrdiff_t head_ = 0;
};

// Some of a fixed number of things, each once, in the order in which they came.
class IndexSet {
 public:
  explicit IndexSet(std::size_t slots) : has_(slots, 0) {}

  const std::vector<int>& members() const { return members_; }
  bool empty() const { return members_.empty(); }

  void add(int index) {
    if (has_[static_cast<std::size_t>(index)]) return;
    has_[static_cast<std::size_t>(index)] = 1;
    members_.push_back(index);
  }

  void clear() {
    keep([](int) { return false; });
  }

  template <class Wanted>
  void keep(Wanted wanted) {
    std::erase_if(members_, [&](int index) {
      if (wanted(index)) return false;
      has_[static_cast<std::size_t>(index)] = 0;
      return true;
    });
  }

 private:
  std::vector<char> has_;
  std::vector<int> members_;
};

// From the decision to the end of execution, by batch size, on a GPU that is free, or that will be once it
// has recovered from a preemption for `stall`.
inline std::vector<Time> batch_costs(const Model& model, const Network& network, Time stall = 0) {
  std::vector<Time> costs;
  for (const Time latency : model.latency)
    costs.push_back(std::max(network.delay(static_cast<int>(costs.size())), stall) + latency);
  return costs;
}

// The largest batch whose cost fits in the budget, 0 if not even one request does.
inline int largest_within(const std::vector<Time>& costs, Time budget) {
  const auto above = std::upper_bound(costs.begin(), costs.end(), budget);
  return std::max(0, static_cast<int>(above - costs.begin()) - 1);
}

}  // namespace astrarium
