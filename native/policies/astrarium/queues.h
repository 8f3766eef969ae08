// Twin of astrarium.serving.policies.astrarium.queues. The Python file says what it means.
#pragma once

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "policies/astrarium/lengths.h"
#include "policies/astrarium/pressure.h"
#include "policies/books.h"
#include "policies/learnt_times.h"
#include "policies/model_queue.h"

namespace astrarium {

class RequestQueue : public ModelQueue {
 public:
  // A negative patience adapts; `times` are those of a dynamic model, `buckets` those of one with lengths.
  RequestQueue(const Model& model, const Network& network, double patience, bool lookahead, bool few_gpus,
               const LearntTimes* times, const Buckets* buckets)
      : ModelQueue(model, network, Gather::kWindow),
        patience_(patience),
        lookahead_(lookahead),
        few_gpus_(few_gpus),
        times_(times),
        buckets_(buckets) {
    adapt({0.0, 1.0, target_, 0, 0, 1}, {});
  }

  int gather(Time now, Time gpu_free) {
    first_ = 0;
    as_of_ = std::max(now, gpu_free);
    size = std::min(waiting(), largest());
    // All together, as most often: fewer would not end later, so there is nothing to search for.
    if (size == 0 || deadline(0) >= finish(size, now, gpu_free)) return 0;
    int before = gather_window(stance_.hold, now, gpu_free);
    if (before == 0 || !lookahead_) return before;  // nobody is in the way, so nobody is lost
    if (size == 0) before = gather_fcfs(now, gpu_free);
    const int lost = hopeless(finish(1, now, gpu_free));
    first_ = before - lost;
    return lost;
  }

  Time opens(Time arrived) const {
    if (first_ > 0) return -kForever;
    return arrived +
           std::min(stance_.wait, static_cast<Time>(stance_.patience * static_cast<double>(frontrun() - arrived)));
  }
  Time latest() const { return deadline(first_) - latency(size); }

  // The candidate was chosen just now, for this GPU, and is enough.
  bool settled(Time now, Time free) const {
    return first_ == 0 && as_of_ == now && free <= now && (size >= stance_.enough || size == waiting());
  }

  // Fix the batch that leaves; returns how many heads it gives up.
  template <class Grants>
  int settle(Time now, Time free, Grants grants) {
    const int lost = hopeless(finish(1, now, free));
    first_ = 0;
    if (lost < waiting()) return give_up(now, free, lost, grants);
    size = 0;
    return lost;
  }

  // Begin with other rates.
  void measure(const RateMeter& meter) { meter_ = meter; }

  // Plan with other batch times, which make another target, for requests of so many applications.
  void plan_with(std::vector<Time> latency, std::size_t applications) {
    table_ = std::move(latency);
    applications_ = applications;
    estimate(table_);
    target_ = meter_.window().first ? staggered_target() : std::min(target_, largest());
  }

  // Move all requests, with their deadlines for the end of execution.
  void clear(std::vector<std::pair<std::int64_t, Time>>& out) {
    for (int place = 0; place < waiting(); ++place) out.emplace_back(heads()[place], deadline(place));
    cut(waiting());
  }

  // The members of a batch of a dynamic model, which come forward; where there are none, the batch stays what it was.
  void choose(Time now, Time free, const Arrivals& arrivals) {
    if (!times_) return;
    Members& crew = crew_;
    crew.leave(times_->applications());
    for (int place = 0; place < waiting() && crew.refusals < applications_; ++place) {
      const int application = arrivals.application[heads()[place]];
      if (crew.refused[static_cast<std::size_t>(application)]) continue;
      const bool joins = may_join(crew, application, now, free);
      if (joins) bring_forward(place, crew.size++);
      if (crew.size == 0 || crew.size == model_.max_batch()) break;
    }
    if (crew.size) size = crew.size;
    takes_ = crew.size ? crew.takes : latency(size);
  }

  // How many of the first requests would be late even alone, by their lengths.
  int late(Time now, Time free, const Arrivals& arrivals) const {
    const Time start = std::max(now + network_.delay(1), free);
    int place = 0;
    while (place < waiting() && start + buckets_->lengths.time(arrivals.bucket[heads()[place]], 1) > deadline(place))
      ++place;
    return place;
  }

  // How many join a batch, from the *first* on; they come forward. One who may not speaks for its like.
  int join(Crew& crew, Time now, Time free, int first, const Arrivals& arrivals) {
    refused_.clear();
    int joined = 0;
    for (int place = first; place < waiting(); ++place) {
      const std::int64_t id = heads()[place];
      const std::int64_t kind = crew.kind(id);
      const Time due = deadline(place);
      if (std::find(refused_.begin(), refused_.end(), kind) != refused_.end()) continue;
      if (crew.admits(id, due, now, free, [&] { return share(arrivals.length[id], now, due); }))
        bring_forward(place, first + joined++);
      else refused_.push_back(kind);
    }
    return joined;
  }

  Crew crew_of_first(const Arrivals& arrivals) const {
    return Crew(arrivals, head(), deadline(0), *buckets_, network_);
  }

  // Of each length, where only equal ones share a run.
  void count(std::int32_t length, int change) {
    if (buckets_->lengths.together == Together::kLength) counts_[length] += change;
  }

  // The batch that leaves has this crew.
  void lead(const Crew& crew) {
    size = crew.size;
    takes_ = crew.takes;
  }

  bool has_lengths() const { return buckets_ != nullptr; }
  bool empty() const { return waiting() == 0; }
  Time first_deadline() const { return deadline(0); }

  Time planned() const { return times_ || buckets_ ? takes_ : ModelQueue::planned(); }

  Demand demand(Time now) {
    roll(now);
    rate_ = meter_.rate();
    return {rate_, meter_.dispersion(), target_, latency(target_), fixed(), model_.slo};
  }

  void adapt(const Demand& demand, const Climate& climate) {
    stance_ = stance_of(demand, climate, few_gpus_);
    if (patience_ < 0) return;
    stance_.wait = kForever;
    stance_.patience = patience_;
  }

 private:
  static constexpr int kMostGivenUp = 24;

  // Who leaves together. As long as nobody joins, whoever is refused speaks for its application.
  struct Members {
    std::vector<double> longest, joined;  // the CDF of the longest member's time, and what it would be with one more
    Time takes = 0;
    int size = 0;
    std::vector<bool> refused;
    std::size_t refusals = 0;

    void leave(std::size_t applications) {
      longest.clear();
      refused.assign(applications, false);
      takes = 0;
      size = 0;
      refusals = 0;
    }
  };

  bool may_join(Members& crew, int application, Time now, Time free) const {
    crew.joined = crew.longest;
    times_->join(crew.joined, application);
    const Time takes = times_->kept(crew.joined, crew.size + 1, kSafe);
    const Time start = std::max(now + network_.delay(crew.size + 1), free);
    if (start + takes > deadline(0) || takes - crew.takes > times_->kept(times_->own_of(application), 1, kSafe)) {
      crew.refused[static_cast<std::size_t>(application)] = true;
      ++crew.refusals;
      return false;
    }
    crew.longest.swap(crew.joined);
    crew.takes = takes;
    crew.refused.assign(crew.refused.size(), false);
    crew.refusals = 0;
    return true;
  }

  // What a request would cost in a batch of its queue, in the end.
  double share(std::int32_t length, Time now, Time due) const {
    const int here = buckets_->lengths.together == Together::kLength ? counts_.at(length) : waiting();
    const double coming = rate_ * static_cast<double>(due - now);
    const int alike = coming >= largest() ? largest() : std::min(here + static_cast<int>(coming), largest());
    return static_cast<double>(latency(alike)) / alike;
  }

  // The others keep their order.
  void bring_forward(int from, int to) {
    const auto bring = [&](auto& column) {
      std::rotate(column.begin() + head_ + to, column.begin() + head_ + from, column.begin() + head_ + from + 1);
    };
    bring(requests_);
    bring(deadlines_);
  }

  Time fixed() const {
    if (largest() < 2) return latency(1);
    return std::max<Time>(0, 2 * latency(1) - latency(2));
  }

  // The largest batch that is done when the first is due: times grow with the batch, so any guess will do.
  int fitting(Time due, int limit, Time now, Time free, int guess = 1) const {
    limit = std::min(limit, largest());
    int batch = std::clamp(guess, 1, limit);
    while (batch > 1 && finish(batch, now, free) > due) --batch;
    while (batch < limit && finish(batch + 1, now, free) <= due) ++batch;
    return batch;
  }

  template <class Grants>
  int give_up(Time now, Time free, int lost, Grants grants) {
    const int count = waiting(), wanted = std::min(stance_.enough, count - lost);
    int best = lost;
    double least = -1;
    size = fitting(deadline(lost), count - lost, now, free, size);
    if (size >= wanted) return best;
    for (int head = lost; head < std::min(lost + kMostGivenUp + 1, count); ++head) {
      const int batch = fitting(deadline(head), count - head, now, free, size);
      const double cost = head - lost + stance_.price * waste(batch) + losses(now, head + batch, grants(batch));
      if (least < 0 || cost < least - 1e-9) {
        least = cost;
        best = head;
        size = batch;
      }
      if (batch >= wanted || head + batch >= count) break;
    }
    return best;
  }

  double waste(int batch) const {
    return static_cast<double>(latency(batch) * target_) / static_cast<double>(latency(target_)) - batch;
  }

  int losses(Time now, int first, const std::vector<Time>& grants) const {
    const int left = waiting() - first;
    const double per_ns = meter_.rate();
    int lost = 0, taken = 0;
    for (const Time then : grants) {
      const int present = left + static_cast<int>(per_ns * static_cast<double>(then - now));
      int head = taken;
      for (; head < present; ++head) {
        const int batch = std::min({stance_.enough, present - head, largest()});
        if (finish(batch, now, then) <= due(now, first, left, head, per_ns)) break;
      }
      lost += std::max(0, head - taken);
      taken = head >= present
                  ? std::max(taken, present)
                  : head + fitting(due(now, first, left, head, per_ns), present - head, now, then, stance_.enough);
    }
    return lost;
  }

  Time due(Time now, int first, int left, int place, double per_ns) const {
    if (place < left) return deadline(first + place);
    return now + static_cast<Time>((place - left + 1) / per_ns) + model_.slo;
  }

  double patience_;
  bool lookahead_, few_gpus_;
  const LearntTimes* times_;
  const Buckets* buckets_;
  std::unordered_map<std::int32_t, int> counts_;
  double rate_ = 0.0;  // at which requests come, by nanosecond, as of the last plan
  std::vector<std::int64_t> refused_;
  std::vector<Time> table_;  // of the group
  std::size_t applications_ = 1;
  Members crew_;
  Time takes_ = 0;
  int first_ = 0;
  Time as_of_ = -1;
  Stance stance_{};
};

}  // namespace astrarium
