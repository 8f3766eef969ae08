// Twin of astrarium.serving.policies.clipper. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <vector>

#include "policies/rivals/replicas.h"

namespace astrarium {

class Clipper : public ReplicaScheduler {
 public:
  Clipper(const Setup& setup, const Parameters& p)
      : ReplicaScheduler(setup),
        setup_(setup),
        increase_(p.reals.at("increase")),
        decrease_(p.reals.at("decrease")),
        objective_(p.reals.at("objective")),
        total_(p.integers.at("total") != 0),
        limits_(cell(setup.gpus, 0), 1.0),
        running_(static_cast<std::size_t>(setup.gpus)),
        rotation_(setup.models.size(), 0) {}

 protected:
  int route(int model, std::int64_t) override {
    int& next = rotation_[static_cast<std::size_t>(model)];
    const int gpu = next;
    next = (next + 1) % setup_.gpus;
    return gpu;
  }

  std::pair<int, int> gather(Time now, int gpu, int model, const EntryQueue& queue) const override {
    const int expired = queue.due_before(now + 1);
    return {expired, std::min(static_cast<int>(limits_[cell(gpu, model)]), queue.size() - expired)};
  }

  void sent(const Instant& instant, int gpu, int model, const RunningBatch& batch) override {
    Time oldest = kForever;
    for (const std::int64_t id : batch.requests) oldest = std::min(oldest, instant.arrivals.time[id]);
    running_[static_cast<std::size_t>(gpu)] = {model, static_cast<int>(batch.requests.size()), oldest};
  }

  void finished(const Instant& instant, const BatchFinished& event) override {
    const Running& batch = running_[static_cast<std::size_t>(event.gpu)];
    adapt(event.gpu, batch, instant.now - (total_ ? batch.oldest : event.started));
  }

 private:
  struct Running {
    int model, size;
    Time oldest;
  };

  void adapt(int gpu, const Running& batch, Time latency) {
    const Model& model = setup_.models[static_cast<std::size_t>(batch.model)];
    double& limit = limits_[cell(gpu, batch.model)];
    if (static_cast<double>(latency) > objective_ * static_cast<double>(model.slo))
      limit = std::max(1.0, limit * decrease_);
    else if (batch.size >= static_cast<int>(limit))
      limit = std::min(limit + increase_, static_cast<double>(model.max_batch()));
  }

  const Setup& setup_;
  double increase_, decrease_, objective_;
  bool total_;
  std::vector<double> limits_;  // batch size by GPU and model
  std::vector<Running> running_;
  std::vector<int> rotation_;
};

inline std::unique_ptr<Policy> make_clipper(const Setup& setup, const Parameters& p) {
  return std::make_unique<Clipper>(setup, p);
}

}  // namespace astrarium
