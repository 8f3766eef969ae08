// Twin of astrarium.serving.policies.orloj. The Python file says what it means; the names are the same.
#pragma once

#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "policies/entries.h"
#include "policies/learnt_times.h"
#include "policies/min_tree.h"
#include "policies/orloj/batch_queues.h"
#include "policies/policy.h"

namespace astrarium {

class Orloj : public Policy {
 public:
  Orloj(const Setup& setup, const Parameters& p)
      : rate_(p.reals.at("rate")),
        farthest_(p.reals.at("farthest")),
        own_(p.integers.at("own") != 0),
        touched_(setup.models.size()),
        drops_(setup.models.size()),
        fronts_(setup.models.size()),
        idle_(static_cast<std::size_t>(setup.gpus), 0) {
    const bool latest = p.integers.at("latest") != 0;
    for (const Model& model : setup.models) {
      times_.emplace_back(model, p.integers.at("bins"), p.integers.at("window"), p.integers.at("refresh"));
      const std::size_t kinds = own_ ? times_.back().applications() : 1;
      queues_.emplace_back(sizes(model.max_batch(), p.lists.at("batch_sizes")), setup.network, kinds, latest);
      learn(times_.size() - 1);
    }
  }

  bool listens_to_profiler() const override { return true; }

  void decide(const Instant& instant, Books& books) override {
    const Time now = instant.now;
    if (!waiting_) base_ = now;
    hear(instant);
    rebase(now);
    drop(now, instant.arrivals, books);
    for (const Event& event : instant.events)
      if (const auto gpu = gpu_of(event)) idle_.set(*gpu, books.gpu(*gpu).idle() ? 0 : kForever);
    for (int gpu = 0; waiting_ && (gpu = idle_.first_at_most(0)) >= 0;) send(now, gpu, instant.arrivals, books);
    if (drops_.least() != timer_) {
      timer_ = drops_.least();
      books.set_timer(now, timer_);
    }
  }

 private:
  void hear(const Instant& instant) {
    const Arrivals& arrivals = instant.arrivals;
    for (std::int64_t id = instant.first; id < instant.last; ++id) push(instant.now, id, arrivals);
    for (const Event& event : instant.events) {
      const auto* profiled = std::get_if<RequestProfiled>(&event);
      if (profiled == nullptr) continue;
      times(profiled->model).measured(instant.now, profiled->application, profiled->alone);
      touched_.add(profiled->model);
    }
    for (const int model : touched_.members()) {  // in any order: a model touches no other
      if (times(model).refreshed(instant.now)) learn(static_cast<std::size_t>(model));
      follow(model);
    }
    touched_.clear();
  }

  void push(Time now, std::int64_t id, const Arrivals& arrivals) {
    const int model = arrivals.model[id], application = arrivals.application[id];
    times(model).arrived(now, application);
    queues(model).push(id, arrivals.deadline[id], own_ ? application : 0);
    touched_.add(model);
    ++waiting_;
  }

  void learn(std::size_t model) {
    const LearntTimes& times = times_[model];
    queues_[model].learn([&](int size, std::size_t kind) {
      return ScoreTable(times.batch(size, own_ ? static_cast<int>(kind) : -1), rate_);
    });
  }

  void rebase(Time now) {
    if (rate_ * static_cast<double>(now - base_) <= farthest_) return;
    base_ = now;
    for (BatchQueues& queues : queues_) queues.forget();
  }

  void drop(Time now, const Arrivals& arrivals, Books& books) {
    while (drops_.least() <= now) {
      const int model = drops_.argmin();
      queues(model).drop(now, arrivals, [&](std::int64_t id) {
        --waiting_;
        books.drop(now, id, kExpired);
      });
      follow(model);
    }
  }

  void send(Time now, int gpu, const Arrivals& arrivals, Books& books) {
    const auto [model, choice] = most_urgent(now);
    queues(model).pop({now, base_, rate_}, choice, arrivals, batch_);
    waiting_ -= std::ssize(batch_);
    follow(model);
    idle_.set(gpu, kForever);
    books.dispatch(now, gpu, batch_.data(), static_cast<int>(batch_.size()), 0);
  }

  // Who waits at a model has changed.
  void follow(int model) {
    drops_.set(model, queues(model).next_drop());
    fronts_.set(model, queues(model).front());
  }

  // The most urgent choice of all models, of equals that of the first; only those are asked that could have it.
  std::pair<int, SizeChoice> most_urgent(Time now) {
    std::optional<SizeChoice> best;
    int of_model = -1;
    set_aside_.clear();
    while (fronts_.least() < kForever && (!best || fronts_.least() <= best->deadline)) {
      const int model = fronts_.argmin();
      set_aside_.emplace_back(model, fronts_[model]);
      fronts_.set(model, kForever);
      const auto choice = queues(model).choose(now);
      if (!choice || (best && std::pair(urgency(*choice), model) >= std::pair(urgency(*best), of_model))) continue;
      best = choice;
      of_model = model;
    }
    for (const auto& [model, front] : set_aside_) fronts_.set(model, front);
    if (!best) throw std::logic_error("requests wait, but no batch can be formed");
    return {of_model, *best};
  }

  static std::pair<Time, int> urgency(const SizeChoice& choice) { return {choice.deadline, choice.minus_size}; }

  static std::vector<int> sizes(int largest, const std::vector<std::int64_t>& allowed) {
    std::vector<int> chosen;
    for (const std::int64_t size : allowed)
      if (size <= largest) chosen.push_back(static_cast<int>(size));
    for (int size = 1; allowed.empty() && size <= largest; size *= 2) chosen.push_back(size);
    return chosen;
  }

  LearntTimes& times(int model) { return times_[static_cast<std::size_t>(model)]; }
  BatchQueues& queues(int model) { return queues_[static_cast<std::size_t>(model)]; }

  double rate_, farthest_;
  bool own_;
  Time base_ = 0, timer_ = kForever;
  std::int64_t waiting_ = 0;
  std::vector<LearntTimes> times_;
  std::vector<BatchQueues> queues_;
  IndexSet touched_;
  MinTree drops_, fronts_, idle_;  // the first two by model; idle_: by GPU, 0 where it is
  std::vector<std::pair<int, Time>> set_aside_;
  std::vector<std::int64_t> batch_;
};

inline std::unique_ptr<Policy> make_orloj(const Setup& setup, const Parameters& p) {
  return std::make_unique<Orloj>(setup, p);
}

}  // namespace astrarium
