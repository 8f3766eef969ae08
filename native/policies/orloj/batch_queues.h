// Twin of astrarium.serving.policies.orloj.batch_queues. The Python file says what it means; the names are the
// same. Requests are known by their row in the arrivals, which hold their deadlines; who has left stays
// among `fresh_` until there are too many of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "common/id_map.h"
#include "policies/books.h"
#include "policies/orloj/hull.h"
#include "policies/orloj/score_table.h"

namespace astrarium {

struct Clock {
  Time now, base;
  double rate;

  double slope() const { return std::exp(rate * static_cast<double>(now - base)); }
};

struct SizeChoice {
  Time deadline;
  int minus_size;
  std::size_t place;
};

class SizeQueue {
 public:
  explicit SizeQueue(Time around) : around_(around) {}

  void learn(std::vector<ScoreTable> tables) {
    tables_ = std::move(tables);
    costs_.clear();
    for (const ScoreTable& table : tables_) costs_.push_back(table.mean() + around_);
  }

  Time cost(std::size_t kind) const { return costs_[kind]; }

  void forget() {
    points_.clear();
    milestones_ = {};
    fresh_.clear();
  }

  // `pending` holds the kind of each.
  void refresh(const Clock& clock, const IdMap& pending, const Arrivals& arrivals) {
    while (!milestones_.empty() && milestones_.top().first <= clock.now) {
      const std::int64_t id = milestones_.top().second;
      milestones_.pop();
      if (!points_.contains(id)) continue;
      points_.remove(id);
      place(clock, id, pending.find(id), arrivals);
    }
    for (const std::int64_t id : fresh_)
      if (const auto kind = pending.find(id); kind >= 0) place(clock, id, kind, arrivals);
    fresh_.clear();
  }

  void add(std::int64_t id, const IdMap& pending) {
    if (fresh_.size() > 2 * pending.size() + 64)
      std::erase_if(fresh_, [&](std::int64_t other) { return pending.find(other) < 0; });
    fresh_.push_back(id);
  }

  void remove(std::int64_t id) {
    if (points_.contains(id)) points_.remove(id);
  }

  std::int64_t best(double slope) const { return points_.best(slope); }

 private:
  void place(const Clock& clock, std::int64_t id, int kind, const Arrivals& arrivals) {
    const auto k = static_cast<std::size_t>(kind);
    const Time deadline = arrivals.deadline[id], last = deadline - costs_[k];
    if (clock.now > last) return;
    const auto [alpha, beta, milestone] = tables_[k].point(clock.now, deadline - around_, clock.base);
    points_.insert(id, alpha, beta);
    milestones_.push({std::min(milestone, last + 1), id});
  }

  using Milestone = std::pair<Time, std::int64_t>;

  Time around_;
  std::vector<ScoreTable> tables_;  // by kind
  std::vector<Time> costs_;         // by kind
  HullQueue points_;
  std::priority_queue<Milestone, std::vector<Milestone>, std::greater<>> milestones_;
  std::vector<std::int64_t> fresh_;
};

class BatchQueues {
 public:
  BatchQueues(std::vector<int> sizes, const Network& network, std::size_t kinds, bool latest)
      : sizes_(std::move(sizes)), latest_(latest), sorted_(kinds) {
    for (const int size : sizes_) queues_.emplace_back(network.delay(size) + network.response);
  }

  std::size_t size() const { return pending_.size(); }
  const std::vector<int>& sizes() const { return sizes_; }

  // `table(size, kind)` makes the scores; all points are to be computed anew.
  template <class Table>
  void learn(Table table) {
    for (std::size_t place = 0; place < sizes_.size(); ++place) {
      std::vector<ScoreTable> tables;
      for (std::size_t kind = 0; kind < sorted_.size(); ++kind) tables.push_back(table(sizes_[place], kind));
      queues_[place].learn(std::move(tables));
    }
    cheapest_.assign(sorted_.size(), kForever);
    for (std::size_t kind = 0; kind < sorted_.size(); ++kind)
      for (const SizeQueue& queue : queues_) cheapest_[kind] = std::min(cheapest_[kind], queue.cost(kind));
    forget();
  }

  void forget() {
    std::vector<std::int64_t> ids;  // in the order in which they came
    for (const Waiting& waiting : sorted_)
      for (const auto& [deadline, id] : waiting) ids.push_back(id);
    std::sort(ids.begin(), ids.end());
    for (SizeQueue& queue : queues_) {
      queue.forget();
      for (const std::int64_t id : ids) queue.add(id, pending_);
    }
  }

  void push(std::int64_t id, Time deadline, int kind) {
    pending_.add(id, kind);
    Waiting& waiting = sorted_[static_cast<std::size_t>(kind)];
    waiting.insert(std::upper_bound(waiting.begin(), waiting.end(), Entry{deadline, id}), {deadline, id});
    for (SizeQueue& queue : queues_) queue.add(id, pending_);
  }

  Time next_drop() const {
    Time next = kForever;
    for (std::size_t kind = 0; kind < sorted_.size(); ++kind)
      if (!sorted_[kind].empty()) next = std::min(next, sorted_[kind].front().first - cheapest_[kind] + 1);
    return next;
  }

  // The earliest deadline of those that wait: no choice is more urgent.
  Time front() const {
    Time earliest = kForever;
    for (const Waiting& waiting : sorted_)
      if (!waiting.empty()) earliest = std::min(earliest, waiting.front().first);
    return earliest;
  }

  // Take out who is too late for every batch size; `gone(id)` hears of each.
  template <class Gone>
  void drop(Time now, const Arrivals& arrivals, Gone gone) {
    for (std::size_t kind = 0; kind < sorted_.size(); ++kind) {
      Waiting& waiting = sorted_[kind];
      while (!waiting.empty() && now + cheapest_[kind] > waiting.front().first) {
        const std::int64_t id = waiting.front().second;
        remove(id, arrivals);
        gone(id);
      }
    }
  }

  std::optional<SizeChoice> choose(Time now) const {
    std::optional<SizeChoice> first, last;
    for (std::size_t place = 0; place < sizes_.size(); ++place) {
      const auto [held, earliest] = count_held(now, queues_[place]);
      if (held < static_cast<std::size_t>(sizes_[place])) continue;
      const SizeChoice choice{earliest, -sizes_[place], place};
      if (!first || order(choice) < order(*first)) first = choice;
      if (!last || std::pair(earliest, sizes_[place]) > std::pair(last->deadline, -last->minus_size)) last = choice;
    }
    if (!first || !latest_) return first;
    return SizeChoice{first->deadline, last->minus_size, last->place};
  }

  void pop(const Clock& clock, const SizeChoice& choice, const Arrivals& arrivals, std::vector<std::int64_t>& batch) {
    SizeQueue& queue = queues_[choice.place];
    const double slope = clock.slope();
    queue.refresh(clock, pending_, arrivals);
    batch.clear();
    for (int left = sizes_[choice.place]; left > 0; --left) {
      batch.push_back(queue.best(slope));
      remove(batch.back(), arrivals);
    }
  }

 private:
  using Entry = std::pair<Time, std::int64_t>;  // deadline and id
  using Waiting = std::vector<Entry>;

  static std::tuple<Time, int, std::size_t> order(const SizeChoice& choice) {
    return {choice.deadline, choice.minus_size, choice.place};
  }

  std::pair<std::size_t, Time> count_held(Time now, const SizeQueue& queue) const {
    std::size_t held = 0;
    Time earliest = kForever;
    for (std::size_t kind = 0; kind < sorted_.size(); ++kind) {
      const Waiting& waiting = sorted_[kind];
      const Entry moment{now + queue.cost(kind), std::numeric_limits<std::int64_t>::min()};
      const auto first = std::lower_bound(waiting.begin(), waiting.end(), moment);
      if (first == waiting.end()) continue;
      held += static_cast<std::size_t>(waiting.end() - first);
      earliest = std::min(earliest, first->first);
    }
    return {held, earliest};
  }

  void remove(std::int64_t id, const Arrivals& arrivals) {
    Waiting& waiting = sorted_[static_cast<std::size_t>(pending_.take(id))];
    waiting.erase(std::lower_bound(waiting.begin(), waiting.end(), Entry{arrivals.deadline[id], id}));
    for (SizeQueue& queue : queues_) queue.remove(id);
  }

  std::vector<int> sizes_;
  bool latest_;
  IdMap pending_;                // the kind of each
  std::vector<Waiting> sorted_;  // by kind
  std::vector<SizeQueue> queues_;
  std::vector<Time> cheapest_;  // by kind, over the sizes
};

}  // namespace astrarium
