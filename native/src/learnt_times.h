// Twin of astrarium.serving.policies._times. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "setup.h"

namespace astrarium {

inline constexpr Time kNarrowest = 1'000;
inline constexpr std::size_t kFewest = 10;

// A histogram: chances[i] lies in [edges[i], edges[i + 1]).
struct BatchTime {
  std::vector<Time> edges;
  std::vector<double> chances;
  Time mean;
};

inline BatchTime certain(Time time) { return {{time - kNarrowest, time}, {1.0}, time}; }

class Memory {
 public:
  explicit Memory(std::vector<Time> history) : history_(std::move(history)) {}

  std::size_t size() const { return history_.size() + heard_.size(); }
  void add(Time now, Time time) { heard_.push_back({now, time}); }

  template <class Visit>
  void each(Visit visit) const {
    for (const Time time : history_) visit(time);
    for (const auto& [when, time] : heard_) visit(time);
  }

  void forget(Time before) {
    if (before > 0 && heard_.size() >= kFewest) history_.clear();
    while (heard_.size() > kFewest && heard_.front().first < before) heard_.pop_front();
  }

 private:
  std::vector<Time> history_;
  std::deque<std::pair<Time, Time>> heard_;  // (when, what)
};

class Traffic {
 public:
  explicit Traffic(std::size_t applications) : now_(applications, 0), before_(applications, 0) {}

  void count(Time now, int application, Time window) {
    if (now >= turns_) {
      if (turns_ >= 0) {
        before_.swap(now_);
        std::fill(now_.begin(), now_.end(), 0);
      }
      turns_ = now + window;
    }
    ++now_[static_cast<std::size_t>(application)];
  }

  std::int64_t weight(std::size_t application) const { return 1 + now_[application] + before_[application]; }

 private:
  std::vector<std::int64_t> now_, before_;
  Time turns_ = -1;
};

// How many equal bins of what was observed, and where they lie.
inline std::vector<Time> grid(Time low, Time high, Time bins) {
  const Time span = std::max(high - low, kNarrowest);
  bins = std::max<Time>(1, std::min(bins, span / kNarrowest));
  std::vector<Time> edges;
  for (Time place = 0; place <= bins; ++place)  // span * place / bins, in steps that do not overflow
    edges.push_back(low + span / bins * place + span % bins * place / bins);
  return edges;
}

inline std::vector<double> cdf(const Memory& memory, const std::vector<Time>& edges) {
  std::vector<std::int64_t> counts(edges.size(), 0);
  memory.each([&](Time time) {
    const auto place = std::upper_bound(edges.begin(), edges.end(), time) - edges.begin();
    ++counts[std::min(edges.size() - 1, static_cast<std::size_t>(place))];
  });
  std::vector<double> shares;
  std::int64_t below = 0;
  for (const std::int64_t count : counts) {
    below += count;
    shares.push_back(static_cast<double>(below) / static_cast<double>(memory.size()));
  }
  return shares;
}

inline double power(double base, int exponent) {
  double result = 1.0;
  for (; exponent; exponent >>= 1, base *= base)
    if (exponent & 1) result *= base;
  return result;
}

inline Time mean(const std::vector<Time>& edges, const std::vector<double>& chances) {
  double total = 0.0;
  for (std::size_t bin = 0; bin < chances.size(); ++bin)
    total += chances[bin] * static_cast<double>(edges[bin] + edges[bin + 1]);
  return static_cast<Time>(total / 2 + 0.5);
}

class LearntTimes {
 public:
  LearntTimes(const Model& model, Time bins, Time window, Time refresh)
      : latency_(model.latency), bins_(bins), window_(window), refresh_(refresh),
        spec_(model.dynamic.value_or(Dynamic{0, 1.0, {}})), learns_(model.dynamic.has_value()),
        traffic_(applications()) {
    for (const auto& history : spec_.history) memories_.emplace_back(history);
    remake();
  }

  std::size_t applications() const { return std::max<std::size_t>(1, spec_.history.size()); }

  void arrived(Time now, int application) {
    if (!learns_) return;
    traffic_.count(now, application, window_);
    news_ = true;
  }

  void measured(Time now, int application, Time time) {
    memories_[static_cast<std::size_t>(application)].add(now, time);
    news_ = true;
  }

  bool refreshed(Time now) {
    if (due_ < 0) due_ = now + refresh_;
    if (!news_ || (now < due_ && !edges_.empty()) || samples() < kFewest) return false;
    for (Memory& memory : memories_) memory.forget(now - window_);
    remake();
    news_ = false;
    due_ = now + refresh_;
    return true;
  }

  // Each request a draw of the mixture, or (not negative) one of an application and a mixed rest.
  BatchTime batch(int size, int application) const {
    if (edges_.empty()) return certain(latency_[static_cast<std::size_t>(size)]);
    const std::vector<double>& own = knows(application) ? cdfs_[static_cast<std::size_t>(application)] : mixture_;
    BatchTime time{batch_edges(size), {}, 0};
    double low = 0.0;
    for (std::size_t edge = 0; edge < edges_.size(); ++edge) {
      const double high = own[edge] * power(mixture_[edge], size - 1);
      if (edge > 0) time.chances.push_back(high - low);
      low = high;
    }
    time.mean = mean(time.edges, time.chances);
    return time;
  }

 private:
  bool knows(int application) const {
    return application >= 0 && memories_[static_cast<std::size_t>(application)].size() >= kFewest;
  }

  std::size_t samples() const {
    std::size_t count = 0;
    for (const Memory& memory : memories_) count += memory.size();
    return count;
  }

  void remake() {
    if (samples() < kFewest) return;
    Time low = kForever, high = 0;
    for (const Memory& memory : memories_)
      memory.each([&](Time time) { low = std::min(low, time), high = std::max(high, time); });
    edges_ = grid(low, high, bins_);
    cdfs_.clear();
    for (const Memory& memory : memories_)
      cdfs_.push_back(memory.size() ? cdf(memory, edges_) : std::vector<double>{});
    mix();
  }

  void mix() {
    mixture_.assign(edges_.size(), 0.0);
    std::int64_t total = 0;
    for (std::size_t application = 0; application < cdfs_.size(); ++application) {
      if (cdfs_[application].empty()) continue;
      const std::int64_t weight = traffic_.weight(application);
      total += weight;
      for (std::size_t edge = 0; edge < edges_.size(); ++edge)
        mixture_[edge] += static_cast<double>(weight) * cdfs_[application][edge];
    }
    for (double& part : mixture_) part /= static_cast<double>(total);
  }

  std::vector<Time> batch_edges(int size) const {
    const double factor = spec_.c1 * size, longest = static_cast<double>(kLongest);
    Time last = -1;
    std::vector<Time> edges;
    for (const Time edge : edges_) {
      const double scaled = std::min(factor * static_cast<double>(edge) + 0.5, longest);
      last = std::max(last + 1, spec_.c0 + static_cast<Time>(scaled));
      edges.push_back(last);
    }
    return edges;
  }

  std::vector<Time> latency_;
  Time bins_, window_, refresh_;
  Dynamic spec_;
  bool learns_;
  Traffic traffic_;
  std::vector<Memory> memories_;
  bool news_ = false;
  Time due_ = -1;
  std::vector<Time> edges_;
  std::vector<std::vector<double>> cdfs_;
  std::vector<double> mixture_;
};

}  // namespace astrarium
