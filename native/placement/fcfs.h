// First come, first served on groups of GPUs: a request is accepted or rejected when it comes, from the
// clocks of the stages alone. Twin of FirstCome in placement/groups/first_come.py.
#pragma once

#include <type_traits>

#include "placement/layout.h"

namespace astrarium::placement {

inline constexpr int kWidest = 64;  // stages; more than any pipeline has

template <typename Time>
class FirstCome {
 public:
  // `clocks[group][stage]`: when each stage is free; brought up to date when `keep` is set.
  FirstCome(const Forms<Time>& forms, const Groups& groups, const Rules<Time>& rules, Time* clocks, bool keep)
      : forms_(forms),
        groups_(groups),
        rules_(rules),
        clocks_(clocks),
        last_(groups.count),
        work_(groups.count),
        slowest_(groups.count),
        total_(groups.count),
        unfinished_(rules.by_queue ? groups.count : 0),
        hosts_(groups, forms.models),
        tried_(groups.count) {
    for (std::int64_t group = 0; group < groups.count; ++group) {
      last_[group] = clocks[group * forms.width + groups.stages[group] - 1];
      if (!keep) find_one_form(group);
    }
  }

  // The finish time of a request (without the fixed part), or kRejected. `where` is the group.
  Time serve(Time arrival, std::int32_t model, Time slo, std::int32_t& where) {
    const std::int32_t* begin = hosts_.begin(model);
    const std::int32_t* end = hosts_.end(model);
    where = -1;
    if (begin == end) return kRejected;
    where = choose(begin, end, arrival);
    Time finish = on_group(where, arrival, model, slo);
    if (finish == kRejected && rules_.another) finish = elsewhere(begin, end, arrival, model, slo, where);
    return finish;
  }

  // Time that each group's slowest stage worked for, as if stages were one: what utilization is made of.
  const std::vector<Time>& work() const { return work_; }

 private:
  // Where all models of a group take the same time in each stage, only the slowest stage holds requests up:
  // a request finishes after its own way through, or the slowest stage's time after the one before it.
  // (Sums of doubles would round differently.)
  void find_one_form(std::int64_t group) {
    if constexpr (!std::is_integral_v<Time>) return;
    const Time* first = nullptr;
    const int stages = groups_.stages[group];
    for (std::int64_t model = 0; model < forms_.models; ++model) {
      if (!groups_.hosts[group * forms_.models + model]) continue;
      const Time* row = forms_.row(groups_.kind[group], model);
      if (first && !std::equal(row, row + stages, first)) return;
      first = first ? first : row;
    }
    const Time* clocks = clocks_ + group * forms_.width;
    if (!first || std::any_of(clocks, clocks + stages, [](Time clock) { return clock != 0; })) return;
    Time total = 0;
    for (int stage = 0; stage < stages; ++stage) total += first[stage];
    total_[group] = total;
    slowest_[group] = *std::max_element(first, first + stages);
  }

  bool late(Time finish, Time arrival, Time slo) const { return finish + rules_.fixed - arrival > slo; }

  Time load(std::int32_t group, Time now) {
    return rules_.by_queue ? static_cast<Time>(unfinished_[group].count(now)) : last_[group];
  }

  std::int32_t choose(const std::int32_t* begin, const std::int32_t* end, Time now) {
    std::int32_t best = *begin;
    if (end - begin == 1) return best;
    Time least = load(best, now);
    for (const std::int32_t* group = begin + 1; group < end; ++group) {
      const Time here = load(*group, now);
      best = here < least ? *group : best;
      least = here < least ? here : least;
    }
    return best;
  }

  Time elsewhere(const std::int32_t* begin, const std::int32_t* end, Time arrival, std::int32_t model, Time slo,
                 std::int32_t& where) {
    std::fill(tried_.begin(), tried_.end(), 0);
    for (std::int64_t left = end - begin - 1; left > 0; --left) {
      tried_[where] = 1;
      std::int32_t best = -1;
      Time least = 0;
      for (const std::int32_t* group = begin; group < end; ++group) {
        if (tried_[*group]) continue;
        const Time here = load(*group, arrival);
        if (best < 0 || here < least) {
          best = *group;
          least = here;
        }
      }
      where = best;
      const Time finish = on_group(where, arrival, model, slo);
      if (finish != kRejected) return finish;
    }
    return kRejected;
  }

  Time on_group(std::int32_t group, Time arrival, std::int32_t model, Time slo) {
    const Time finish =
        slowest_[group] ? through_one_form(group, arrival, slo) : through_stages(group, arrival, model, slo);
    if (finish != kRejected && rules_.by_queue) unfinished_[group].add(finish);
    return finish;
  }

  Time through_one_form(std::int32_t group, Time arrival, Time slo) {
    const Time finish = std::max(arrival + total_[group], last_[group] ? last_[group] + slowest_[group] : 0);
    if (late(finish, arrival, slo)) return kRejected;
    last_[group] = finish;
    work_[group] += slowest_[group];
    return finish;
  }

  Time through_stages(std::int32_t group, Time arrival, std::int32_t model, Time slo) {
    const Time* row = forms_.row(groups_.kind[group], model);
    Time* clocks = clocks_ + group * forms_.width;
    const int stages = groups_.stages[group];
    Time ends[kWidest];
    Time now = arrival, slowest = 0;
    for (int stage = 0; stage < stages; ++stage) {
      now = std::max(now, clocks[stage]) + row[stage];
      ends[stage] = now;
      slowest = std::max(slowest, row[stage]);
    }
    if (late(now, arrival, slo)) return kRejected;
    for (int stage = 0; stage < stages; ++stage) clocks[stage] = ends[stage];
    last_[group] = now;
    work_[group] += slowest;
    return now;
  }

  const Forms<Time>& forms_;
  const Groups& groups_;
  const Rules<Time>& rules_;
  Time* clocks_;
  std::vector<Time> last_, work_, slowest_, total_;
  std::vector<Unfinished<Time>> unfinished_;
  Hosts hosts_;
  std::vector<char> tried_;
};

}  // namespace astrarium::placement
