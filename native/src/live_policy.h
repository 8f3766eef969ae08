// A policy of the window family at work on the wall clock: the books are kept elsewhere (in Python), here are
// only the decisions. Requests have slots while they wait; what happens to GPUs is told.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "policy.h"

namespace astrarium {

struct Arrival {
  std::int64_t id;  // as the caller numbers them
  int model;
  Time arrival, deadline;
};

struct GpuNews {
  int gpu;
  bool present;
  int batches;
  bool recovering;
};

struct Decision {
  enum Kind { kDispatch, kDrop, kTimer } kind;
  int gpu = 0;
  Time at = 0;                     // of a start or a timer
  std::vector<std::int64_t> ids{};  // of a dispatch, or the one that is dropped
  Reason reason = kNone;
};

// Waiting requests by slot. A slot is used again once its request has left.
class Waiting {
 public:
  explicit Waiting(std::size_t slots = 4096) { grow(slots); }

  // Neighbouring slots for these; returns the first.
  std::int64_t place(const std::vector<Arrival>& arrivals) {
    const auto count = static_cast<std::int64_t>(arrivals.size());
    const std::int64_t first = room_for(count);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto slot = static_cast<std::size_t>(first + i);
      const Arrival& one = arrivals[static_cast<std::size_t>(i)];
      id_[slot] = one.id, time_[slot] = one.arrival, deadline_[slot] = one.deadline, model_[slot] = one.model;
      taken_[slot] = true;
    }
    next_ = first + count;
    return first;
  }

  std::int64_t leave(std::int64_t slot) {
    taken_[static_cast<std::size_t>(slot)] = false;
    return id_[static_cast<std::size_t>(slot)];
  }

  Arrivals columns() const {
    return {time_.data(), deadline_.data(), model_.data(), nullptr, static_cast<std::int64_t>(id_.size())};
  }

 private:
  std::int64_t room_for(std::int64_t count) {
    if (count == 0) return next_;
    const auto slots = static_cast<std::int64_t>(id_.size());
    for (int round = 0; round < 2; ++round, next_ = 0) {
      std::int64_t free = 0;
      for (std::int64_t slot = next_; slot < slots; ++slot) {
        free = taken_[static_cast<std::size_t>(slot)] ? 0 : free + 1;
        if (free == count) return slot + 1 - count;
      }
    }
    grow(id_.size() * 2 + static_cast<std::size_t>(count));
    return slots;
  }

  void grow(std::size_t slots) {
    id_.resize(slots), time_.resize(slots), deadline_.resize(slots), model_.resize(slots), taken_.resize(slots);
  }

  std::vector<std::int64_t> id_;
  std::vector<Time> time_, deadline_;
  std::vector<std::int32_t> model_;
  std::vector<bool> taken_;
  std::int64_t next_ = 0;
};

inline const Arrivals kNobody{nullptr, nullptr, nullptr, nullptr, 0};
inline const Truth kUnknown{};

class LiveBooks final : public Books {
 public:
  LiveBooks(const Setup& setup, Waiting& waiting) : Books(setup, kNobody, kUnknown), waiting_(waiting) {}

  void hear(const GpuNews& news) {
    Gpu& gpu = gpu_at(news.gpu);
    gpu.present = news.present;
    gpu.recovering = news.recovering ? 0 : -1;
    gpu.batches.resize(static_cast<std::size_t>(news.batches));
  }

  void dispatch(Time, int gpu, const std::int64_t* slots, int size, Time start) override {
    Decision made{Decision::kDispatch, gpu, start};
    for (int i = 0; i < size; ++i) made.ids.push_back(waiting_.leave(slots[i]));
    gpu_at(gpu).batches.emplace_back();
    decisions.push_back(std::move(made));
  }

  void drop(Time, std::int64_t slot, Reason reason) override {
    decisions.push_back({Decision::kDrop, 0, 0, {waiting_.leave(slot)}, reason});
  }

  std::vector<std::int64_t> preempt(Time, int) override { throw std::logic_error("this policy does not preempt"); }

  void set_timer(Time now, Time at, std::size_t) override {
    decisions.push_back({Decision::kTimer, 0, std::max(at, now)});
  }

  std::vector<Decision> decisions;

 private:
  Waiting& waiting_;
};

class LivePolicy {
 public:
  LivePolicy(Setup setup, const Parameters& parameters,
             std::unique_ptr<Policy> (*make)(const Setup&, const Parameters&))
      : setup_(std::move(setup)), books_(setup_, waiting_), policy_(make(setup_, parameters)) {
    if (!policy_) throw std::invalid_argument("no native twin of policy " + parameters.policy + " decides live");
  }

  std::vector<Decision> decide(Time now, const std::vector<Arrival>& arrivals, const std::vector<GpuNews>& news) {
    events_.clear();
    for (const GpuNews& one : news) {
      books_.hear(one);
      events_.push_back({now, 0, Happened::kBatchFinished, one.gpu, 0, 0, 0});
    }
    const std::int64_t first = waiting_.place(arrivals);
    const Arrivals columns = waiting_.columns();
    books_.decisions.clear();
    policy_->decide({now, first, first + static_cast<std::int64_t>(arrivals.size()), events_, columns}, books_);
    return std::move(books_.decisions);
  }

 private:
  Setup setup_;
  Waiting waiting_;
  LiveBooks books_;
  std::unique_ptr<Policy> policy_;
  std::vector<Event> events_;
};

}  // namespace astrarium
