// Twin of ModelQueue in astrarium.serving.policies._queue: the requests of one model, earliest deadline
// first, and the batch it would send now.
#pragma once

#include <algorithm>
#include <vector>

#include "policies/contract.h"
#include "policies/rate_meter.h"

namespace astrarium {

using Wide = __int128;  // a duration times a count may not fit in 64 bits

enum class Gather { kFcfs, kWindow };

class ModelQueue {
 public:
  ModelQueue(const Model& model, const Network& network, Gather gather)
      : model_(model),
        network_(network),
        gather_(gather),
        target_(std::max(1, model.largest_batch_within(model.slo / 2 - 2 * kMillisecond))) {
    estimate(model.latency);
  }

  int size = 0;  // of the candidate batch; 0 when nothing waits

  void push(Time now, std::int64_t request, Time client_deadline) {
    roll(now);
    meter_.count();
    insert(request, client_deadline - network_.response);
  }

  void insert(std::int64_t request, Time deadline) {
    if (waiting() == 0 || deadline >= deadlines_.back()) {
      deadlines_.push_back(deadline);
      requests_.push_back(request);
      return;
    }
    const auto place = std::upper_bound(deadlines_.begin() + head_, deadlines_.end(), deadline);
    requests_.insert(requests_.begin() + (place - deadlines_.begin()), request);
    deadlines_.insert(place, deadline);
  }

  void roll(Time now) {
    if (meter_.roll(now)) target_ = staggered_target();
  }

  const RateMeter& meter() const { return meter_; }

  // Choose the batch that would leave now; returns how many heads must be given up (see `heads`, `cut`).
  int gather(Time now, Time gpu_free) {
    return gather_ == Gather::kFcfs ? gather_fcfs(now, gpu_free) : gather_window(target_, now, gpu_free);
  }

  const std::int64_t* heads() const { return requests_.data() + head_; }
  std::int64_t head() const { return requests_[static_cast<std::size_t>(head_)]; }

  void cut(int count) {
    head_ += count;
    if (head_ < 256 || head_ * 2 < static_cast<std::ptrdiff_t>(deadlines_.size())) return;
    deadlines_.erase(deadlines_.begin(), deadlines_.begin() + head_);
    requests_.erase(requests_.begin(), requests_.begin() + head_);
    head_ = 0;
  }

  bool saveable(Time client_deadline, Time now) const { return now + ready_[1] + network_.response <= client_deadline; }

  Time latest() const { return deadline(0) - latency(size); }
  Time frontrun() const { return deadline(0) - latency(size + 1) - network_.data; }
  Time latency(int batch) const { return latency_[batch]; }
  Time planned() const { return latency(size); }

 protected:
  // Plan with these times for batches of 0, 1, 2, ... requests; they stay where they are.
  void estimate(const std::vector<Time>& latency) {
    latency_ = latency.data();
    ready_.resize(latency.size());
    for (std::size_t size = 0; size < ready_.size(); ++size)
      ready_[size] = network_.delay(static_cast<int>(size)) + latency[size];
  }

  int waiting() const { return static_cast<int>(static_cast<std::ptrdiff_t>(deadlines_.size()) - head_); }
  int largest() const { return static_cast<int>(ready_.size()) - 2; }
  Time deadline(int place) const { return deadlines_[static_cast<std::size_t>(head_ + place)]; }

  Time finish(int batch, Time now, Time gpu_free) const {
    return std::max(now + ready_[static_cast<std::size_t>(batch)], gpu_free + latency(batch));
  }

  int gather_fcfs(Time now, Time gpu_free) { return settle(1, hopeless(finish(1, now, gpu_free)), now, gpu_free); }

  int gather_window(int target, Time now, Time gpu_free) {
    const int count = waiting();
    int suffix = std::min(count, largest());
    for (int first = 0; first < count && deadline(first) < finish(suffix, now, gpu_free);)
      suffix = std::min(count - ++first, largest());
    const int wanted = std::max(1, std::min(target, suffix));
    return settle(wanted, hopeless(finish(wanted, now, gpu_free)), now, gpu_free);
  }

  // How many heads cannot wait for that finish. A scan: there is rarely more than one.
  int hopeless(Time finish) const {
    int count = 0;
    while (count < waiting() && deadline(count) < finish) ++count;
    return count;
  }

  // Take more requests while the head still meets its deadline.
  int settle(int wanted, int dropped, Time now, Time gpu_free) {
    if (dropped == waiting()) {
      size = 0;
      return dropped;
    }
    const int limit = std::min(waiting() - dropped, largest());
    const Time first = deadline(dropped);
    size = wanted;
    while (size < limit && finish(size + 1, now, gpu_free) <= first) ++size;
    return dropped;
  }

  int staggered_target() const {
    const auto [count, window] = meter_.window();
    const Wide budget = Wide{model_.slo - network_.control - network_.response} * count;
    int low = 1, high = largest();
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      const Wide cost = Wide{latency(middle) + network_.data * middle} * count + Wide{middle} * window;
      if (cost <= budget) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  const Model& model_;
  const Network& network_;
  Gather gather_;
  const Time* latency_ = nullptr;
  std::vector<Time> ready_;  // network delay plus execution, by batch size
  std::vector<Time> deadlines_;
  std::vector<std::int64_t> requests_;
  std::ptrdiff_t head_ = 0;
  RateMeter meter_;
  int target_;
};

}  // namespace astrarium
