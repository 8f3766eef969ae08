// Who decides on the wall clock: a policy's twin (here), or a policy in Python (front/python_policy.h). Whoever carries
// decisions out keeps the books that count; a twin has only those that it reads. Requests have slots while they wait
// and run; what happens to GPUs is told.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "policies/policy.h"

namespace astrarium {

struct Arrival {
  std::int64_t id;  // as the caller numbers them
  int model;
  Time arrival, deadline;
  int application = 0;
};

struct Decision {
  enum Kind { kDispatch, kDrop, kTimer, kPreempt } kind;
  int gpu = 0;
  Time at = 0;                      // of a start or a timer
  std::vector<std::int64_t> ids{};  // of a dispatch, or the one that is dropped
  Reason reason = kNone;            // of a drop; kNone: `why` says it in the policy's own words
  std::int64_t run = -1;            // of a dispatch, or the one that is cancelled
  std::string why{};
};

// What has happened since a policy last decided. An event's `sequence` says how many arrivals came before it.
struct Heard {
  std::vector<Arrival> arrivals;
  std::vector<Event> events;
  std::vector<std::string> errors;  // of the batches among them that failed, in their order

  bool empty() const { return arrivals.empty() && events.empty(); }
  void clear() { arrivals.clear(), events.clear(), errors.clear(); }
};

class Decider {
 public:
  virtual ~Decider() = default;
  virtual std::vector<Decision> decide(Time now, const Heard& heard) = 0;
  virtual bool listens_to_profiler() const = 0;

  // A policy in Python takes its time, and tells requests apart by numbers that are never used again.
  virtual bool is_python() const { return false; }

  // What it needs to decide, to be held meanwhile by who asks: it may take a while to get.
  virtual std::shared_ptr<void> enter() { return nullptr; }
};

// Makes a fresh one for a setup, or throws.
using MakeDecider = std::function<std::unique_ptr<Decider>(const Setup&)>;

// Requests that wait or run, by ids of our own that only grow: policies sort by them. A slot is used again once its
// request has left; where one is still taken when its turn comes round, ids skip it.
class Waiting {
 public:
  explicit Waiting(std::int64_t slots = 4096) { resize(slots); }  // a power of two

  // Neighbouring ids for these; returns the first.
  std::int64_t place(const std::vector<Arrival>& arrivals) {
    const auto count = static_cast<std::int64_t>(arrivals.size());
    const std::int64_t first = room_for(count);
    for (std::int64_t i = 0; i < count; ++i) set(first + i, arrivals[static_cast<std::size_t>(i)]);
    next_ = first + count;
    return first;
  }

  std::int64_t caller_id(std::int64_t id) const { return caller_[slot(id)]; }
  void leave(std::int64_t id) { taken_[slot(id)] = false; }

  Arrivals columns() const {
    return {{time_.data(), mask_},       {deadline_.data(), mask_}, {model_.data(), mask_}, {}, mask_ + 1,
            {application_.data(), mask_}};
  }

 private:
  std::size_t slot(std::int64_t id) const { return static_cast<std::size_t>(id & mask_); }

  void set(std::int64_t id, const Arrival& one) {
    const std::size_t at = slot(id);
    id_[at] = id;
    caller_[at] = one.id;
    taken_[at] = true;
    time_[at] = one.arrival;
    deadline_[at] = one.deadline;
    model_[at] = one.model;
    application_[at] = one.application;
  }

  std::int64_t room_for(std::int64_t count) {
    if (count == 0) return next_;
    std::int64_t free = 0;
    for (std::int64_t id = next_; id <= next_ + mask_; ++id) {
      free = taken_[slot(id)] ? 0 : free + 1;
      if (free == count) return id + 1 - count;
    }
    grow();
    return room_for(count);
  }

  void grow() {
    Waiting wider(2 * (mask_ + 1));
    for (std::size_t at = 0; at < id_.size(); ++at)
      if (taken_[at]) wider.set(id_[at], {caller_[at], model_[at], time_[at], deadline_[at], application_[at]});
    wider.next_ = next_;
    *this = std::move(wider);
  }

  void resize(std::int64_t slots) {
    const auto size = static_cast<std::size_t>(slots);
    mask_ = slots - 1;
    id_.resize(size);
    caller_.resize(size);
    time_.resize(size);
    deadline_.resize(size);
    model_.resize(size);
    application_.resize(size);
    taken_.resize(size);
  }

  std::int64_t mask_ = 0, next_ = 0;
  std::vector<std::int64_t> id_, caller_;
  std::vector<Time> time_, deadline_;
  std::vector<std::int32_t> model_, application_;
  std::vector<bool> taken_;
};

inline const Arrivals kNobody{{}, {}, {}, {}, 0};
inline const Truth kUnknown{};

class LiveBooks final : public Books {
 public:
  LiveBooks(const Setup& setup, Waiting& waiting) : Books(setup, kNobody, kUnknown), waiting_(waiting) {}

  void hear(const Event& event) {
    if (event.what == Happened::kRequestProfiled) return;
    Gpu& gpu = gpu_at(event.gpu);
    switch (event.what) {
      case Happened::kGpuJoined: gpu.present = true; break;
      case Happened::kGpuLeft:
        gpu.present = false;
        while (!gpu.batches.empty()) end_first(gpu);
        break;
      default:
        if (!gpu.batches.empty() && gpu.batches.front().run == event.run) end_first(gpu);
    }
  }

  void dispatch(Time, int gpu, const std::int64_t* ids, int size, Time start) override {
    Decision made{Decision::kDispatch, gpu, start};
    made.ids.reserve(static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) made.ids.push_back(waiting_.caller_id(ids[i]));
    made.run = runs_++;
    gpu_at(gpu).batches.push_back({made.run, start, reuse(ids, size)});
    decisions.push_back(std::move(made));
  }

  void drop(Time, std::int64_t id, Reason reason) override {
    decisions.push_back({Decision::kDrop, 0, 0, {waiting_.caller_id(id)}, reason});
    waiting_.leave(id);
  }

  std::vector<std::int64_t> preempt(Time, int) override { throw std::logic_error("this policy does not preempt"); }

  void set_timer(Time now, Time at, std::size_t) override {
    decisions.push_back({Decision::kTimer, 0, std::max(at, now)});
  }

  std::vector<Decision> decisions;

 private:
  void end_first(Gpu& gpu) {
    for (const std::int64_t id : gpu.batches.front().requests) waiting_.leave(id);
    forget_batch(gpu);
  }

  Waiting& waiting_;
  std::int64_t runs_ = 0;
};

class LivePolicy final : public Decider {
 public:
  LivePolicy(Setup setup, const Parameters& parameters,
             std::unique_ptr<Policy> (*make)(const Setup&, const Parameters&))
      : setup_(std::move(setup)), books_(setup_, waiting_), policy_(make(setup_, parameters)) {
    if (!policy_) throw std::invalid_argument("no native twin of policy " + parameters.policy + " decides live");
  }

  bool listens_to_profiler() const override { return policy_->listens_to_profiler(); }

  std::vector<Decision> decide(Time now, const Heard& heard) override {
    return decide(now, heard.arrivals, heard.events);
  }
  std::vector<Decision> decide(Time now, const std::vector<Arrival>& arrivals, const std::vector<Event>& events) {
    for (const Arrival& one : arrivals) check(one);
    for (const Event& one : events) books_.hear(one);
    const std::int64_t first = waiting_.place(arrivals);
    const Arrivals columns = waiting_.columns();
    books_.decisions.clear();
    policy_->decide({now, first, first + static_cast<std::int64_t>(arrivals.size()), events, columns}, books_);
    return std::move(books_.decisions);
  }

 private:
  void check(const Arrival& one) const {
    const auto& known = setup_.models.at(static_cast<std::size_t>(one.model)).dynamic;
    if (known && (one.application < 0 || one.application >= std::ssize(known->history)))
      throw std::invalid_argument("application " + std::to_string(one.application) + ": must be one of the model's");
  }

  Setup setup_;
  Waiting waiting_;
  LiveBooks books_;
  std::unique_ptr<Policy> policy_;
};

}  // namespace astrarium
