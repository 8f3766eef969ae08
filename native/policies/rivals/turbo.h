// Twin of astrarium.serving.policies.turbo. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "policies/policy.h"

namespace astrarium {

using Cut = std::vector<std::vector<std::int64_t>>;

class Turbo final : public Policy {
 public:
  Turbo(const Setup& setup, const Parameters& p) : network_(setup.network), gpus_(setup.gpus) {
    const std::vector<std::int64_t>& timeouts = per_model(setup, p, "timeouts");
    for (std::size_t index = 0; index < setup.models.size(); ++index) {
      const Model& model = setup.models[index];
      Lengths alike{{0}, {model.latency}};
      queues_.push_back({{}, timeouts[index], model.max_batch(), model.lengths ? *model.lengths : alike});
    }
  }

  void decide(const Instant& instant, Books& books) override {
    arrivals_ = &instant.arrivals;
    for (std::int64_t id = instant.first; id < instant.last; ++id) queue_of(id).requests.push_back(id);
    for (int gpu = 0; gpu < gpus_; ++gpu) {
      if (!books.gpu(gpu).idle()) continue;
      if (batches_.empty()) cut(instant.now, books);
      if (batches_.empty()) break;
      const std::vector<std::int64_t> batch = std::move(batches_.front());
      batches_.pop_front();
      books.dispatch(instant.now, gpu, batch.data(), static_cast<int>(batch.size()), instant.now);
    }
    set_timer(instant.now, books);
  }

 private:
  struct Queue {
    std::vector<std::int64_t> requests;
    Time timeout;
    int full;
    Lengths lengths;
  };

  Queue& queue_of(std::int64_t id) { return queues_[static_cast<std::size_t>(arrivals_->model[id])]; }
  std::int64_t length(std::int64_t id) const { return arrivals_->length ? arrivals_->length[id] : 0; }
  int bucket(std::int64_t id) const { return arrivals_->bucket ? arrivals_->bucket[id] : 0; }

  Time due(const Queue& queue) const {
    if (queue.requests.empty()) return kForever;
    Time oldest = kForever;
    for (const std::int64_t id : queue.requests) oldest = std::min(oldest, arrivals_->time[id]);
    return oldest + queue.timeout;
  }

  void cut(Time now, Books& books) {
    Cut batches;
    for (Queue& queue : queues_) {
      if (due(queue) > now && std::ssize(queue.requests) < queue.full) continue;
      drop(now, queue, books);
      empty(queue, batches);
    }
    const auto oldest = [this](const std::vector<std::int64_t>& batch) {
      std::pair<Time, std::int64_t> first{kForever, 0};
      for (const std::int64_t id : batch) first = std::min(first, std::pair{arrivals_->time[id], id});
      return first;
    };
    std::sort(batches.begin(), batches.end(),
              [&](const auto& one, const auto& other) { return oldest(one) < oldest(other); });
    for (std::vector<std::int64_t>& batch : batches) batches_.push_back(std::move(batch));
  }

  void drop(Time now, Queue& queue, Books& books) {
    const Time earliest = now + network_.delay(1) + network_.response;
    const auto late = std::stable_partition(queue.requests.begin(), queue.requests.end(), [&](std::int64_t id) {
      return earliest + queue.lengths.time(bucket(id), 1) <= arrivals_->deadline[id];
    });
    for (auto id = late; id != queue.requests.end(); ++id) books.drop(now, *id, kExpired);
    queue.requests.erase(late, queue.requests.end());
  }

  void empty(Queue& queue, Cut& batches) const {
    std::vector<std::int64_t> ordered = std::exchange(queue.requests, {});
    std::sort(ordered.begin(), ordered.end(), [this](std::int64_t one, std::int64_t other) {
      return std::tuple(length(one), arrivals_->deadline[one], one) <
             std::tuple(length(other), arrivals_->deadline[other], other);
    });
    for (auto first = ordered.begin(); first != ordered.end();) {
      const auto other =
          std::find_if(first, ordered.end(), [&](std::int64_t id) { return kind(queue, id) != kind(queue, *first); });
      least(queue.lengths, {first, other}, batches);
      first = other;
    }
  }

  // What requests have in common that can share a run.
  std::int64_t kind(const Queue& queue, std::int64_t id) const {
    if (queue.lengths.together == Together::kPadded) return 0;
    return queue.lengths.together == Together::kBucket ? bucket(id) : length(id);
  }

  // Cut requests that rise by length into batches of consecutive ones that take the least time together.
  void least(const Lengths& lengths, const std::vector<std::int64_t>& requests, Cut& batches) const {
    std::vector<Time> least{0};
    std::vector<int> sizes{0};
    for (int end = 1; end <= std::ssize(requests); ++end) {
      const int longest = bucket(requests[static_cast<std::size_t>(end - 1)]);
      least.push_back(kForever);
      sizes.push_back(0);
      for (int size = 1; size <= std::min(end, lengths.max_batch(longest)); ++size) {
        const Time total = least[static_cast<std::size_t>(end - size)] + lengths.time(longest, size);
        if (total <= least.back()) {
          least.back() = total;
          sizes.back() = size;
        }
      }
    }
    const auto from = std::ssize(batches);
    for (auto end = std::ssize(requests); end > 0;) {
      const int size = sizes[static_cast<std::size_t>(end)];
      batches.emplace_back(requests.begin() + end - size, requests.begin() + end);
      end -= size;
    }
    std::reverse(batches.begin() + from, batches.end());
  }

  void set_timer(Time now, Books& books) {
    Time at = kForever;
    for (const Queue& queue : queues_)
      if (const Time moment = due(queue); moment > now) at = std::min(at, moment);
    if (at == timer_) return;
    timer_ = at;
    books.set_timer(now, at);
  }

  const Network& network_;
  int gpus_;
  std::vector<Queue> queues_;
  std::deque<std::vector<std::int64_t>> batches_;  // of the last cut, those that have not left
  Time timer_ = kForever;
  const Arrivals* arrivals_ = nullptr;
};

inline std::unique_ptr<Policy> make_turbo(const Setup& setup, const Parameters& p) {
  return std::make_unique<Turbo>(setup, p);
}

}  // namespace astrarium
