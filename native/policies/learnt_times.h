// Twin of astrarium.serving.policies._times. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <deque>
#include <iterator>
#include <utility>
#include <vector>

#include "policies/contract.h"

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

// A time, and among how many it was the longest.
struct Sample {
  Time time;
  std::int64_t among;
  auto operator<=>(const Sample&) const = default;
};

class Memory {
 public:
  explicit Memory(std::vector<Time> history) : history_(std::move(history)) {
    for (const Time time : history_) fresh_.push_back({time, 1});
  }

  std::size_t size() const { return history_.size() + recent_.size(); }
  bool by_longest() const { return longest_ > 0; }
  void begin(Time now) { since_ = now; }

  void add(Time now, Time time, std::int64_t among) {
    recent_.push_back({now, {time, among}});
    fresh_.push_back({time, among});
    longest_ += among != 1;
  }

  void forget(Time before) {
    if (before > since_ && recent_.size() >= kFewest)
      for (; !history_.empty(); history_.pop_back()) gone_.push_back({history_.back(), 1});
    for (; recent_.size() > kFewest && recent_.front().first < before; recent_.pop_front()) {
      gone_.push_back(recent_.front().second);
      longest_ -= gone_.back().among != 1;
    }
  }

  // All that count, in rising order. They are kept so: few come and go between two looks.
  const std::vector<Sample>& rising() {
    if (fresh_.empty() && gone_.empty()) return rising_;
    std::vector<Sample> merged;
    merged.reserve(rising_.size() + fresh_.size());
    std::sort(fresh_.begin(), fresh_.end());
    std::sort(gone_.begin(), gone_.end());
    std::merge(rising_.begin(), rising_.end(), fresh_.begin(), fresh_.end(), std::back_inserter(merged));
    rising_.clear();
    std::set_difference(merged.begin(), merged.end(), gone_.begin(), gone_.end(), std::back_inserter(rising_));
    fresh_.clear();
    gone_.clear();
    return rising_;
  }

 private:
  std::vector<Time> history_;
  Time since_ = 0;
  std::deque<std::pair<Time, Sample>> recent_;  // when, and what
  std::int64_t longest_ = 0;                    // samples among several
  std::vector<Sample> rising_, fresh_, gone_;
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

inline std::vector<double> cdf_by_longest(const std::vector<Sample>& rising, const std::vector<Time>& edges) {
  std::int64_t no_longer = 0;
  for (const Sample& sample : rising) no_longer += sample.among;
  std::vector<double> below(edges.size(), 1.0);
  std::size_t place = rising.size();
  double chance = 1.0;
  for (std::size_t edge = edges.size() - 1; edge-- > 0;) {
    for (; place > 0 && rising[place - 1].time >= edges[edge]; --place) {
      chance *= 1 - 1 / static_cast<double>(no_longer);
      no_longer -= rising[place - 1].among;
    }
    below[edge] = chance;
  }
  return below;
}

inline std::vector<double> cdf(const std::vector<Sample>& rising, const std::vector<Time>& edges) {
  std::vector<double> shares;
  for (std::size_t edge = 0; edge + 1 < edges.size(); ++edge) {
    const auto below = std::lower_bound(rising.begin(), rising.end(), Sample{edges[edge], 0}) - rising.begin();
    shares.push_back(static_cast<double>(below) / static_cast<double>(rising.size()));
  }
  shares.push_back(1.0);
  return shares;
}

inline double quantile(const std::vector<Time>& edges, const std::vector<double>& below, double chance) {
  const auto place = static_cast<std::size_t>(std::lower_bound(below.begin(), below.end(), chance) - below.begin());
  if (place == 0 || place == below.size()) return static_cast<double>(edges[std::min(place, edges.size() - 1)]);
  const double low = below[place - 1], high = below[place];
  const double width = static_cast<double>(edges[place] - edges[place - 1]);
  return static_cast<double>(edges[place - 1]) + width * ((chance - low) / (high - low));
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
      : latency_(model.latency),
        bins_(bins),
        window_(window),
        refresh_(refresh),
        spec_(model.dynamic.value_or(Dynamic{0, 1.0, {}})),
        learns_(model.dynamic.has_value()),
        traffic_(applications()) {
    for (const auto& history : spec_.history) memories_.emplace_back(history);
    remake();
  }

  std::size_t applications() const { return std::max<std::size_t>(1, spec_.history.size()); }
  bool known() const { return !edges_.empty(); }

  void begin(Time now) {
    for (Memory& memory : memories_) memory.begin(now);
  }

  void arrived(Time now, int application) {
    if (!learns_) return;
    traffic_.count(now, application, window_);
    news_ = true;
  }

  void measured(Time now, int application, Time time, std::int64_t among = 1) {
    memories_.at(static_cast<std::size_t>(application)).add(now, time, among);
    news_ = true;
  }

  // A batch of these applications took so long.
  void finished(Time now, const std::vector<int>& applications, Time took, double chance) {
    std::vector<double> longest;
    for (const int application : applications) join(longest, application);
    if (took > kept(longest, static_cast<int>(applications.size()), chance)) due_ = now;
    const auto differs = [&](int application) { return application != applications[0]; };
    if (std::any_of(applications.begin(), applications.end(), differs)) return;
    const double size = static_cast<double>(applications.size());
    const double single = static_cast<double>(took - spec_.c0) / (spec_.c1 * size);
    const Time time = static_cast<Time>(std::min(single + 0.5, static_cast<double>(kLongest)));
    measured(now, applications[0], std::max<Time>(1, time), std::ssize(applications));
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

  // The times that batches of 0, 1, 2, ... of these applications do not exceed with that chance.
  std::vector<Time> table(const std::vector<int>& applications, double chance) const {
    if (edges_.empty()) return latency_;
    const std::vector<double> below = mixture(applications);
    std::vector<Time> times{0};
    for (int size = 1; size < std::ssize(latency_) - 1; ++size)
      times.push_back(std::max(times.back(), kept(below, size, std::pow(chance, 1.0 / size))));
    times.push_back(kForever);
    return times;
  }

  // One entry of `table`.
  Time time(const std::vector<int>& applications, int size, double chance) const {
    return kept(mixture(applications), size, std::pow(chance, 1.0 / size));
  }

  // The CDF of the longest request of a batch, once one of an application joins it; empty: it is the first.
  void join(std::vector<double>& longest, int application) const {
    const std::vector<double>& own = own_of(application);
    if (longest.empty()) longest = own;
    else
      for (std::size_t edge = 0; edge < own.size(); ++edge) longest[edge] *= own[edge];
  }

  // Its CDF, or that of the mixture where too little was known of it when they were made.
  const std::vector<double>& own_of(int application) const {
    return !own_.empty() && own_[static_cast<std::size_t>(application)] ? cdfs_[static_cast<std::size_t>(application)]
                                                                        : mixture_;
  }

  Time kept(const std::vector<double>& longest, int size, double chance) const {
    if (edges_.empty()) return latency_[static_cast<std::size_t>(size)];
    const double scaled = spec_.c1 * size * quantile(edges_, longest, chance) + 0.5;
    return std::max<Time>(1, spec_.c0 + static_cast<Time>(std::min(scaled, static_cast<double>(kLongest))));
  }

 private:
  std::vector<double> mixture(const std::vector<int>& applications) const {
    std::vector<int> known;
    for (const int application : applications)
      if (knows(application)) known.push_back(application);
    return known.empty() ? mixture_ : mixed(known);
  }

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
    std::vector<const std::vector<Sample>*> sorted;
    Time low = kForever, high = 0;
    for (Memory& memory : memories_) {
      sorted.push_back(&memory.rising());
      if (sorted.back()->empty()) continue;
      low = std::min(low, sorted.back()->front().time);
      high = std::max(high, sorted.back()->back().time);
    }
    edges_ = grid(low, high, bins_);
    cdfs_.clear();
    own_.clear();
    std::vector<int> seen;
    for (const Memory& memory : memories_) {
      const std::vector<Sample>& rising = *sorted[cdfs_.size()];
      if (!rising.empty()) seen.push_back(static_cast<int>(cdfs_.size()));
      cdfs_.push_back(rising.empty()        ? std::vector<double>{}
                      : memory.by_longest() ? cdf_by_longest(rising, edges_)
                                            : cdf(rising, edges_));
      own_.push_back(memory.size() >= kFewest);
    }
    mixture_ = mixed(seen);
  }

  // The mean of the CDFs of these, by their traffic.
  std::vector<double> mixed(const std::vector<int>& applications) const {
    std::vector<double> mixture(edges_.size(), 0.0);
    std::int64_t total = 0;
    for (const int number : applications) {
      const auto application = static_cast<std::size_t>(number);
      const std::int64_t weight = traffic_.weight(application);
      total += weight;
      for (std::size_t edge = 0; edge < edges_.size(); ++edge)
        mixture[edge] += static_cast<double>(weight) * cdfs_[application][edge];
    }
    for (double& part : mixture) part /= static_cast<double>(total);
    return mixture;
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
  std::vector<bool> own_;  // by application: whether enough was known of it
};

}  // namespace astrarium
