// Groups that let requests wait: the next batch is made when the first stage is free. Earliest deadline or
// arrival first. Twin of QueuedGroups in placement/groups/queued.py.
#pragma once

#include <functional>
#include <utility>

#include "placement/layout.h"

namespace astrarium::placement {

class QueuedGroups {
  using Time = std::int64_t;

 public:
  QueuedGroups(const Forms<Time>& forms, const Groups& groups, const Rules<Time>& rules, const Requests<Time>& requests,
               Time* finish, std::int32_t* where)
      : forms_(forms),
        groups_(groups),
        rules_(rules),
        requests_(requests),
        finish_(finish),
        where_(where),
        hosts_(groups, forms.models),
        states_(groups.count),
        work_(groups.count) {
    for (std::int64_t group = 0; group < groups.count; ++group) {
      states_[group].clocks.resize(groups.stages[group]);
      states_[group].queues.resize(forms.models);
      for (std::int32_t model = 0; model < forms.models; ++model)
        if (groups.hosts[group * forms.models + model]) states_[group].models.push_back(model);
    }
  }

  void run() {
    for (std::int64_t id = 0; id < requests_.count; ++id) arrive(id);
    for (std::int64_t group = 0; group < groups_.count; ++group) advance(group, kNever);
  }

  const std::vector<Time>& work() const { return work_; }

 private:
  static constexpr Time kNever = Time{1} << 61;
  using Entry = std::pair<Time, std::int64_t>;  // deadline or arrival, and the request

  struct GroupState {
    std::vector<Time> clocks;
    std::vector<std::vector<Entry>> queues;  // heaps, by model
    std::vector<std::int32_t> models;
    Unfinished<Time> running;
    std::int64_t waiting = 0;
    Time ready = 0;  // when the first of those that wait came
  };

  Time deadline(std::int64_t id) const {
    return requests_.arrival[id] + requests_.slo[requests_.model[id]] - rules_.fixed;
  }

  void arrive(std::int64_t id) {
    const Time now = requests_.arrival[id];
    const std::int32_t model = requests_.model[id];
    std::int32_t best = -1;
    std::int64_t least = 0;
    finish_[id] = kRejected;
    where_[id] = -1;
    for (const std::int32_t* group = hosts_.begin(model); group < hosts_.end(model); ++group) {
      advance(*group, now);
      if (rules_.another && through(*group, now, model, 1) > deadline(id)) continue;
      GroupState& state = states_[*group];
      const std::int64_t length = state.waiting + state.running.count(now);
      if (best < 0 || length < least) {
        best = *group;
        least = length;
      }
    }
    where_[id] = best;
    if (best < 0 || through(best, now, model, 1) > deadline(id)) return;
    GroupState& state = states_[best];
    if (state.waiting++ == 0) state.ready = now;
    auto& queue = state.queues[model];
    queue.emplace_back(rules_.edf ? deadline(id) : now, id);
    std::push_heap(queue.begin(), queue.end(), std::greater<>{});
  }

  // Send off all batches that start before `until`.
  void advance(std::int64_t group, Time until) {
    GroupState& state = states_[group];
    while (state.waiting > 0) {
      const Time start = std::max(state.clocks[0], state.ready);
      if (start >= until) return;
      send(group, state, start);
    }
  }

  void send(std::int64_t group, GroupState& state, Time start) {
    const std::int32_t model = next_model(state);
    batch_.clear();
    Time earliest = kNever, finish = kRejected;
    auto& queue = state.queues[model];
    while (!queue.empty() && static_cast<std::int64_t>(batch_.size()) < forms_.batches) {
      const std::int64_t id = queue.front().second;
      const Time due = deadline(id);
      if (through(group, start, model, 1) > due) {  // too late even alone: it goes, and is not answered
        pop(state, queue);
        continue;
      }
      const Time with = through(group, start, model, static_cast<std::int64_t>(batch_.size()) + 1);
      if (with > std::min(earliest, due)) break;
      earliest = std::min(earliest, due);
      finish = with;
      batch_.push_back(id);
      pop(state, queue);
    }
    if (!batch_.empty()) commit(group, state, start, model, finish);
  }

  void commit(std::int64_t group, GroupState& state, Time start, std::int32_t model, Time finish) {
    const Time* row = forms_.row(groups_.kind[group], model, static_cast<std::int64_t>(batch_.size()));
    Time now = start, slowest = 0;
    for (std::size_t stage = 0; stage < state.clocks.size(); ++stage) {
      now = std::max(now, state.clocks[stage]) + row[stage];
      state.clocks[stage] = now;
      slowest = std::max(slowest, row[stage]);
    }
    work_[group] += slowest;
    for (const std::int64_t id : batch_) {
      finish_[id] = finish;
      state.running.add(finish);
    }
  }

  Time through(std::int64_t group, Time start, std::int32_t model, std::int64_t batch) const {
    const Time* row = forms_.row(groups_.kind[group], model, batch);
    const auto& clocks = states_[group].clocks;
    Time now = start;
    for (std::size_t stage = 0; stage < clocks.size(); ++stage) now = std::max(now, clocks[stage]) + row[stage];
    return now;
  }

  static std::int32_t next_model(const GroupState& state) {
    std::int32_t best = -1;
    for (const std::int32_t model : state.models) {
      const auto& queue = state.queues[model];
      if (!queue.empty() && (best < 0 || queue.front() < state.queues[best].front())) best = model;
    }
    return best;
  }

  static void pop(GroupState& state, std::vector<Entry>& queue) {
    std::pop_heap(queue.begin(), queue.end(), std::greater<>{});
    queue.pop_back();
    --state.waiting;
  }

  const Forms<Time>& forms_;
  const Groups& groups_;
  const Rules<Time>& rules_;
  const Requests<Time>& requests_;
  Time* finish_;
  std::int32_t* where_;
  Hosts hosts_;
  std::vector<GroupState> states_;
  std::vector<Time> work_;
  std::vector<std::int64_t> batch_;
};

}  // namespace astrarium::placement
