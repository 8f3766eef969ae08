// Twin of astrarium.serving.policies._replicas: a request is bound to a GPU when it arrives, and each GPU
// serves its own queues in turns. GPUs neither leave nor join here.
#pragma once

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "policies/entries.h"
#include "policies/policy.h"

namespace astrarium {

class ReplicaScheduler : public Policy {
 public:
  explicit ReplicaScheduler(const Setup& setup)
      : network_(setup.network),
        models_(setup.models.size()),
        backends_(static_cast<std::size_t>(setup.gpus), Backend{std::vector<EntryQueue>(models_), {}}) {
    for (const Model& model : setup.models) costs_.push_back(batch_costs(model, network_));
  }

  void decide(const Instant& instant, Books& books) override {
    const Arrivals& arrivals = instant.arrivals;
    for (std::int64_t id = instant.first; id < instant.last; ++id)
      bind(arrivals.model[id], arrivals.deadline[id] - network_.response, id);
    for (const Event& event : instant.events) {
      if (const auto gpu = gpu_of(event)) touched_.push_back(*gpu);
      if (const auto* batch = std::get_if<BatchFinished>(&event)) finished(instant, *batch);
    }
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    for (const int gpu : touched_)
      if (books.gpu(gpu).idle()) turn(instant, gpu, books);
    touched_.clear();
  }

 protected:
  // The GPU that shall serve the request.
  virtual int route(int model, std::int64_t request) = 0;

  // How many heads to drop, and how many of the rest (at least one, if there is any) to run now.
  virtual std::pair<int, int> gather(Time now, int gpu, int model, const EntryQueue& queue) const = 0;

  virtual void sent(const Instant&, int /*gpu*/, int /*model*/, const RunningBatch&) {}
  virtual void finished(const Instant&, const BatchFinished&) {}

  const std::vector<Time>& costs(int model) const { return costs_[static_cast<std::size_t>(model)]; }

  // Where a value for a GPU and a model stands in a flat table.
  std::size_t cell(int gpu, int model) const {
    return static_cast<std::size_t>(gpu) * models_ + static_cast<std::size_t>(model);
  }

  Network network_;
  std::size_t models_;

 private:
  struct Backend {
    std::vector<EntryQueue> queues;
    std::deque<int> turns;  // the models that have requests waiting, next one first
  };

  void bind(int model, Time due, std::int64_t id) {
    const int gpu = route(model, id);
    Backend& backend = backends_[static_cast<std::size_t>(gpu)];
    EntryQueue& queue = backend.queues[static_cast<std::size_t>(model)];
    if (queue.empty()) backend.turns.push_back(model);
    queue.insert(due, id);
    touched_.push_back(gpu);
  }

  void turn(const Instant& instant, int gpu, Books& books) {
    Backend& backend = backends_[static_cast<std::size_t>(gpu)];
    bool sent_one = false;
    while (!sent_one && !backend.turns.empty()) {
      const int model = backend.turns.front();
      backend.turns.pop_front();
      EntryQueue& queue = backend.queues[static_cast<std::size_t>(model)];
      sent_one = send(instant, gpu, model, queue, books);
      if (!queue.empty()) backend.turns.push_back(model);
    }
  }

  bool send(const Instant& instant, int gpu, int model, EntryQueue& queue, Books& books) {
    const Time now = instant.now;
    const auto [given_up, size] = gather(now, gpu, model, queue);
    queue.drop(now, given_up, now + costs(model)[1], books);
    if (size == 0) return false;
    books.dispatch(now, gpu, queue.ids(), size, now + network_.delay(size));
    queue.cut(size);
    sent(instant, gpu, model, books.gpu(gpu).batches.back());
    return true;
  }

  std::vector<std::vector<Time>> costs_;
  std::vector<Backend> backends_;
  std::vector<int> touched_;
};

}  // namespace astrarium
