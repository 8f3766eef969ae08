// Twin of astrarium.serving.policies.clockwork. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <compare>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "policies/min_tree.h"
#include "policies/policy.h"
#include "policies/rivals/candidates.h"

namespace astrarium {

class Clockwork : public Policy {
 public:
  Clockwork(const Setup& setup, Time ahead, Time buffer, Time window, bool powers_of_two)
      : ahead_(ahead),
        buffer_(buffer),
        window_(window),
        response_(setup.network.response),
        changed_(setup.models.size()),
        free_(static_cast<std::size_t>(setup.gpus), 0),
        first_(static_cast<std::size_t>(setup.gpus), -1) {
    for (const Model& model : setup.models) models_.emplace_back(model, setup.network, powers_of_two);
  }

  void decide(const Instant& instant, Books& books) override {
    const Time now = instant.now;
    for (std::int64_t id = instant.first; id < instant.last; ++id) push(id, instant.arrivals);
    for (const Event& event : instant.events)
      if (const auto gpu = gpu_of(event)) see_gpu(now, *gpu, instant.arrivals, books);
    dispatch(now, books);
    if (free_.least() >= kForever) {
      hold(now, books);
    } else if ((!changed_.empty() || !urgent_.empty()) && free_.least() - ahead_ > now) {
      books.set_timer(now, free_.least() - ahead_, kTimeline);
    }
  }

 private:
  enum Timer : std::size_t { kTimeline, kHopeless };

  struct Urgent {
    Time latest;
    int size, model;
    std::int64_t version;
    auto operator<=>(const Urgent&) const = default;
  };

  void push(std::int64_t id, const Arrivals& arrivals) {
    const Time due = arrivals.deadline[id] - response_;
    const Time wanted = std::max(due - buffer_, arrivals.time[id] + ahead_ + buffer_);
    candidates(arrivals.model[id]).queue.insert(std::min(due, wanted), id);
    changed_.add(arrivals.model[id]);
  }

  void see_gpu(Time now, int gpu, const Arrivals& arrivals, Books& books) {
    const auto& batches = books.gpu(gpu).batches;
    const std::int64_t run = batches.empty() ? -1 : batches.front().run;
    if (run == first(gpu) && run >= 0) return;
    if (batches.size() == 1 && now - batches.front().start > window_) {
      free_.set(gpu, kForever);
      refuse(now, gpu, arrivals, books);
      first(gpu) = run;
      return;
    }
    Time free = now;
    for (const RunningBatch& batch : batches) {
      const auto& latency = candidates(arrivals.model[batch.requests[0]]).latency;
      free = std::max(free, batch.start) + latency[batch.requests.size()];
    }
    if (free < free_[gpu]) look_at_all_again();
    free_.set(gpu, free);
    first(gpu) = run;
  }

  // The batch before took so long that this one, about to begin, has missed its window.
  void refuse(Time now, int gpu, const Arrivals& arrivals, Books& books) {
    for (const std::int64_t id : books.preempt(now, gpu)) {
      const Time alone = candidates(arrivals.model[id]).costs[1];
      books.drop(now, id, arrivals.deadline[id] - response_ >= now + alone ? kSacrificed : kExpired);
    }
  }

  void look_at_all_again() {
    for (std::size_t model = 0; model < models_.size(); ++model)
      if (!models_[model].queue.empty()) changed_.add(static_cast<int>(model));
  }

  void dispatch(Time now, Books& books) {
    for (int gpu = claim(now, books); gpu >= 0; gpu = claim(now, books)) {
      const Time free = free_[gpu];
      for (const int model : changed_.members()) look(now, free, model, books);
      changed_.clear();
      const int urgent = most_urgent(now, free, books);
      if (urgent < 0) return;
      send(now, gpu, urgent, books);
      first(gpu) = books.gpu(gpu).batches.front().run;
    }
  }

  int claim(Time now, const Books& books) {
    for (int gpu = free_.first_at_most(now); gpu >= 0; gpu = free_.first_at_most(now)) {
      if (books.gpu(gpu).idle()) return gpu;
      free_.set(gpu, kForever);
    }
    return free_.least() <= now + ahead_ ? free_.argmin() : -1;
  }

  void look(Time now, Time free, int model, Books& books) {
    Candidates& c = candidates(model);
    const Time alone = c.finish(1, now, free);
    c.queue.drop(now, c.queue.due_before(alone), alone, books);
    c.look(now, free);
    if (c.size) urgent_.push({c.latest, c.urgent, model, c.version});
  }

  int most_urgent(Time now, Time free, Books& books) {
    while (!urgent_.empty()) {
      const auto [latest, size, model, version] = urgent_.top();
      const bool valid = version == candidates(model).version;
      if (valid && !candidates(model).outdated(now, free)) return model;
      urgent_.pop();
      if (valid) look(now, free, model, books);
    }
    return -1;
  }

  void send(Time now, int gpu, int model, Books& books) {
    Candidates& c = candidates(model);
    c.queue.drop(now, c.first, 0, books);
    const auto size = static_cast<std::size_t>(c.size);
    const Time start = std::max(now + c.delays[size], free_[gpu]);
    free_.set(gpu, start + c.latency[size]);
    books.dispatch(now, gpu, c.queue.ids(), c.size, start);
    c.queue.cut(c.size);
    ++c.version;
    if (!c.queue.empty()) changed_.add(model);
  }

  // Each GPU overruns its estimate: requests wait for as long as an idle one could still save them.
  void hold(Time now, Books& books) {
    Time hopeless = kForever;
    for (std::size_t model = 0; model < models_.size(); ++model) {
      EntryQueue& queue = models_[model].queue;
      const Time alone = models_[model].costs[1];
      queue.drop(now, queue.due_before(now + alone), now + alone, books);
      if (!queue.empty()) hopeless = std::min(hopeless, queue.due() - alone + 1);
      changed_.add(static_cast<int>(model));
    }
    if (hopeless < kForever) books.set_timer(now, hopeless, kHopeless);
  }

  Candidates& candidates(int model) { return models_[static_cast<std::size_t>(model)]; }
  std::int64_t& first(int gpu) { return first_[static_cast<std::size_t>(gpu)]; }

  Time ahead_, buffer_, window_, response_;
  std::vector<Candidates> models_;
  IndexSet changed_;
  std::priority_queue<Urgent, std::vector<Urgent>, std::greater<>> urgent_;
  MinTree free_;
  std::vector<std::int64_t> first_;
};

inline std::unique_ptr<Policy> make_clockwork(const Setup& setup, const Parameters& p) {
  return std::make_unique<Clockwork>(setup, p.integers.at("ahead"), p.integers.at("buffer"), p.integers.at("window"),
                                     p.integers.at("powers_of_two") != 0);
}

}  // namespace astrarium
