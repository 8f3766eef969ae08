// Twin of astrarium.serving.policies.window: Symphony's scheduler for any window, and the deferred, eager and
// timeout windows. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <deque>
#include <numeric>
#include <vector>

#include "policies/min_tree.h"
#include "policies/model_queue.h"
#include "policies/policy.h"

namespace astrarium {

// `Queue` is a ModelQueue, or one that gathers in its own way; `Self` says when the window opens.
template <class Queue, class Self>
class WindowScheduler : public Policy {
 public:
  WindowScheduler(const Setup& setup, std::size_t queues)
      : network_(setup.network),
        wake_(queues),
        latest_(queues),
        delays_(queues),
        free_(static_cast<std::size_t>(setup.gpus), 0),
        planned_(static_cast<std::size_t>(setup.gpus)) {
    queues_.reserve(queues);
  }

  void decide(const Instant& instant, Books& books) override {
    const Time now = instant.now;
    arrivals_ = &instant.arrivals;
    hear(instant, books);
    self().study(instant);
    self().plan(now, books);
    for (int index = wake_.first_at_most(now); index >= 0; index = wake_.first_at_most(now)) {
      wake_.set(index, kForever);
      changed_.push_back(index);
    }
    std::sort(changed_.begin(), changed_.end());
    changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
    for (const int index : changed_) update(now, index, 0, books);
    changed_.clear();
    // Without a GPU for the one with the longest delay there is none for anybody.
    if (latest_.least() < kForever && free_.least() <= now - delays_.least()) match(now, books);
    set_timer(now, books);
  }

 protected:
  // What `Self` may have of its own.
  int index_of(std::int64_t id) const { return arrivals_->model[id]; }
  void study(const Instant&) {}
  void plan(Time, const Books&) {}
  void gave_up(Time, const Queue&, int) {}
  void sent(int, const RunningBatch&) {}
  const std::int64_t* batch_of(int index) { return queue(index).heads(); }

  // The batch of a queue has left it.
  void leave(Time now, int index, Books& books) {
    queue(index).cut(queue(index).size);
    update(now, index, 0, books);
  }

  // The last word on a batch that has a GPU.
  void settle(Time now, int index, int gpu, Books& books) {
    if (free_[gpu] > now) update(now, index, free_[gpu], books);
  }

  void hear(const Instant& instant, const Books& books) {
    const Arrivals& arrivals = instant.arrivals;
    for (std::int64_t id = instant.first; id < instant.last; ++id) {
      const int index = self().index_of(id);
      queue(index).push(instant.now, id, arrivals.deadline[id]);
      changed_.push_back(index);
    }
    for (const Event& event : instant.events)
      if (const auto gpu = gpu_of(event)) see_gpu(instant.now, *gpu, stopped(event, instant.now), books.gpu(*gpu));
  }

  // When the GPU was done with the batch that has ended, if one has.
  static Time stopped(const Event& event, Time now) {
    const auto* finished = std::get_if<BatchFinished>(&event);
    return finished != nullptr && finished->stopped ? finished->stopped : now;
  }

  void see_gpu(Time now, int id, Time stopped, const Gpu& gpu) {
    std::deque<Time>& planned = planned_[static_cast<std::size_t>(id)];
    while (planned.size() > gpu.batches.size()) planned.pop_front();
    if (gpu.idle()) free_.set(id, now);
    else if (!gpu.present) free_.set(id, kForever);
    else start_late(stopped, id);
  }

  void start_late(Time began, int gpu) {
    const std::deque<Time>& planned = planned_[static_cast<std::size_t>(gpu)];
    const Time end = std::accumulate(planned.begin(), planned.end(), began), free = free_[gpu];
    if (free < end || free >= kForever) free_.set(gpu, end);
  }

  void update(Time now, int index, Time gpu_free, Books& books) {
    Queue& q = queue(index);
    give_up(now, q, q.gather(now, gpu_free), books);
    if (q.size == 0) return forget(index);
    const Time delay = network_.delay(q.size), open = self().opens(q) - delay;
    if (open > now) {
      hide(index);
      wake_.set(index, open);
    } else {
      open_ += latest_[index] >= kForever;
      latest_.set(index, q.latest());
      delays_.set(index, -delay);
      wake_.set(index, q.latest() - delay + 1);
    }
  }

  void give_up(Time now, Queue& q, int count, Books& books) {
    if (count == 0) return;
    self().gave_up(now, q, count);
    for (int i = 0; i < count; ++i) {
      const std::int64_t id = q.heads()[i];
      books.drop(now, id, q.saveable(arrivals_->deadline[id], now) ? kSacrificed : kExpired);
    }
    q.cut(count);
  }

  void forget(int index) {
    hide(index);
    wake_.set(index, kForever);
  }

  void hide(int index) {
    if (latest_[index] >= kForever) return;
    --open_;
    latest_.set(index, kForever);
    delays_.set(index, kForever);
  }

  void match(Time now, Books& books) {
    for (int index = latest_.argmin(); index >= 0; index = latest_.argmin()) {
      const int gpu = claim(now, index, books);
      if (gpu < 0) break;
      if (free_[gpu] > latest_[index]) {
        too_late_.emplace_back(index, latest_[index]);
        latest_.set(index, kForever);
      } else {
        grant(now, index, gpu, books);
      }
    }
    for (const auto& [index, latest] : too_late_) latest_.set(index, latest);
    too_late_.clear();
  }

  int claim(Time now, int index, const Books& books) {
    while (true) {
      int gpu = free_.first_at_most(now - delays_[index]);
      if (gpu < 0 && free_.least() <= now - delays_.least()) gpu = free_.argmin();
      if (gpu < 0 || free_[gpu] > now || books.gpu(gpu).idle()) return gpu;
      free_.set(gpu, kForever);
    }
  }

  void grant(Time now, int index, int gpu, Books& books) {
    Queue& q = queue(index);
    const Time free = free_[gpu];
    self().settle(now, index, gpu, books);
    if (q.size == 0) return;
    const Time start = std::max(now + network_.delay(q.size), free);
    planned_[static_cast<std::size_t>(gpu)].push_back(q.planned());
    free_.set(gpu, start + q.planned());
    books.dispatch(now, gpu, self().batch_of(index), q.size, start);
    self().sent(gpu, books.gpu(gpu).batches.back());
    self().leave(now, index, books);
  }

  void set_timer(Time now, Books& books) {
    Time at = wake_.least();
    if (latest_.least() < kForever && delays_.least() < 0)
      at = std::min(at, std::max(now + 1, free_.least() + delays_.least()));
    if (at == timer_) return;
    timer_ = at;
    books.set_timer(now, at);
  }

  Self& self() { return static_cast<Self&>(*this); }
  Queue& queue(int index) { return queues_[static_cast<std::size_t>(index)]; }

  Network network_;
  std::vector<Queue> queues_;
  MinTree wake_, latest_, delays_, free_;
  std::vector<std::deque<Time>> planned_;  // by GPU: of the batches that it has
  int open_ = 0;
  Time timer_ = kForever;
  const Arrivals* arrivals_ = nullptr;
  std::vector<int> changed_;
  std::vector<std::pair<int, Time>> too_late_;
};

enum class Opens { kDeferred, kEager, kTimeout };

class NamedWindow final : public WindowScheduler<ModelQueue, NamedWindow> {
  friend WindowScheduler;

 public:
  NamedWindow(const Setup& setup, Opens opens, Gather gather, std::vector<Time> timeouts)
      : WindowScheduler(setup, setup.models.size()), opens_(opens), timeouts_(std::move(timeouts)) {
    for (const Model& model : setup.models) queues_.emplace_back(model, network_, gather);
  }

 private:
  Time opens(const ModelQueue& q) const {
    switch (opens_) {
      case Opens::kDeferred: return q.frontrun();
      case Opens::kEager: return -kForever;
      case Opens::kTimeout: break;
    }
    const auto model = static_cast<std::size_t>(arrivals_->model[q.head()]);
    const Time waited = arrivals_->time[q.head()] + timeouts_[model];
    return std::min(waited + network_.delay(q.size), q.latest());
  }

  Opens opens_;
  std::vector<Time> timeouts_;
};

inline std::unique_ptr<Policy> make_window(const Setup& setup, Opens opens, const Parameters& p) {
  const Gather gather = p.integers.at("fcfs") ? Gather::kFcfs : Gather::kWindow;
  std::vector<Time> timeouts;
  if (opens == Opens::kTimeout) timeouts = per_model(setup, p, "timeouts");
  return std::make_unique<NamedWindow>(setup, opens, gather, std::move(timeouts));
}

}  // namespace astrarium
