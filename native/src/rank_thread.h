// The half of Symphony's scheduler that owns GPUs (its RankThread): free times, timers, matchmaking.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "min_tree.h"
#include "model_thread.h"

namespace astrarium {

class RankThread {
 public:
  RankThread(const Setup& setup, Pace pace, std::vector<ModelMail*> mails, std::vector<int> thread_of_model)
      : pace_(pace), mails_(std::move(mails)), thread_of_model_(std::move(thread_of_model)),
        latest_(setup.models.size()), delays_(setup.models.size(), 0),
        free_(static_cast<std::size_t>(setup.gpus), 0), candidates_(setup.models.size()),
        deaf_until_(setup.models.size(), 0) {}

  // Hear what the model threads published at the end of quantum k, then grant for quantum k + lead.
  void match(int k) {
    step_ = k;
    timers_.clear();
    next_timer_ = 0;
    for (ModelMail* mail : mails_) hear(*mail);
    std::sort(timers_.begin(), timers_.end());
    const Time end = pace_.horizon(k);
    for (Time now = next_instant(end - pace_.quantum); now < end; now = next_instant(now + 1)) match_at(now);
  }

 private:
  void hear(ModelMail& mail) {
    for (const GpuReturned& gpu : mail.returned.at(step_)) free_.set(gpu.gpu, gpu.free);
    for (const CandidateChanged& candidate : mail.candidates.at(step_)) {
      const auto model = static_cast<std::size_t>(candidate.model);
      // Until the model thread has seen the grant, what it says is about a batch that will be gone.
      if (step_ < deaf_until_[model]) continue;
      forget(candidate.model);
      candidates_[model] = candidate;
      if (candidate.opens < kForever) timers_.emplace_back(candidate.opens, candidate.model);
    }
  }

  // When a model's or a GPU's timer goes off next.
  Time next_instant(Time now) const {
    Time at = next_timer_ < timers_.size() ? timers_[next_timer_].first : kForever;
    if (latest_.least() < kForever) at = std::min(at, free_.least() + delays_.least());
    return std::max(at, now);
  }

  void match_at(Time now) {
    for (; next_timer_ < timers_.size() && timers_[next_timer_].first <= now; ++next_timer_) {
      const int model = timers_[next_timer_].second;
      const CandidateChanged& candidate = candidates_[static_cast<std::size_t>(model)];
      latest_.set(model, candidate.latest);
      delays_.set(model, -candidate.delay);
    }
    for (int model = latest_.argmin(); model >= 0; model = latest_.argmin()) {
      const int gpu = claim(now, model);
      if (gpu < 0) break;
      // Too late even for this GPU: the model thread will form another candidate.
      if (std::max(free_[gpu], now - delays_[model]) > latest_[model]) forget(model);
      else grant(now, model, gpu);
    }
  }

  // The GPU of smallest number that is free in time; else the next one, if its timer has gone off.
  int claim(Time now, int model) const {
    const int gpu = free_.first_at_most(now - delays_[model]);
    return gpu < 0 && free_.least() <= now - delays_.least() ? free_.argmin() : gpu;
  }

  void grant(Time now, int model, int gpu) {
    const auto row = static_cast<std::size_t>(model);
    auto& granted = mails_[static_cast<std::size_t>(thread_of_model_[row])]->granted;
    granted.at(step_ + pace_.lead).push_back({now, model, gpu, free_[gpu]});
    deaf_until_[row] = step_ + pace_.lead;
    free_.set(gpu, kForever);
    forget(model);
  }

  void forget(int model) {
    latest_.set(model, kForever);
    delays_.set(model, 0);
  }

  Pace pace_;
  std::vector<ModelMail*> mails_;
  std::vector<int> thread_of_model_;
  MinTree latest_, delays_, free_;  // delays are negative: the least is the longest
  std::vector<CandidateChanged> candidates_;
  std::vector<int> deaf_until_;
  std::vector<std::pair<Time, int>> timers_;  // of this step: a candidate is told only when it opens within it
  std::size_t next_timer_ = 0;
  int step_ = 0;
};

}  // namespace astrarium
