// Who decides on the wall clock: a policy's twin (here), or a policy in Python (scheduler/python_policy.h). Whoever
// carries decisions out keeps the books that count; a twin has only those that it reads. Requests have slots while they
// wait and run; events say what happens to GPUs.
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
#include "policies/request_table.h"

namespace astrarium {

// What has happened since a policy last decided.
struct Happenings {
  std::vector<Arrival> arrivals;
  std::vector<Event> events;
  std::vector<std::size_t> arrived_before;  // by event: how many of the arrivals came before it

  bool empty() const { return arrivals.empty() && events.empty(); }
  void add(Event event) {
    events.push_back(std::move(event));
    arrived_before.push_back(arrivals.size());
  }
  void clear() {
    arrivals.clear();
    events.clear();
    arrived_before.clear();
  }
};

class Decider {
 public:
  virtual ~Decider() = default;
  virtual std::vector<Action> decide(Time now, const Happenings& happenings) = 0;
  virtual bool listens_to_profiler() const = 0;

  // A policy in Python takes its time, and tells requests apart by numbers that are never used again.
  virtual bool is_python() const { return false; }

  // What it needs to decide, to be held meanwhile by who asks: it may take a while to get.
  virtual std::shared_ptr<void> enter() { return nullptr; }
};

// Makes a fresh one for a setup, or throws.
using MakeDecider = std::function<std::unique_ptr<Decider>(const Setup&)>;

inline const Arrivals kNobody{{}, {}, {}, {}, 0};
inline const Truth kUnknown{};

class LiveBooks final : public Books {
 public:
  LiveBooks(const Setup& setup, RequestTable& requests) : Books(setup, kNobody, kUnknown), requests_(requests) {}

  void hear(const Event& event) {
    std::visit(Overloaded{[](const RequestProfiled&) {},
                          [this](const GpuJoined& joined) { gpu_at(joined.gpu).present = true; },
                          [this](const GpuLeft& left) { empty(gpu_at(left.gpu)); },
                          [this](const auto& ended) { end(gpu_at(ended.gpu), ended.run); }},
               event);
  }

  void dispatch(Time, int gpu, const std::int64_t* ids, int size, Time start) override {
    Dispatch action{gpu, {}, start, runs_++};
    action.requests.reserve(static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) action.requests.push_back(requests_.caller_id(ids[i]));
    gpu_at(gpu).batches.push_back({action.run, start, reuse(ids, size)});
    actions.push_back(std::move(action));
  }

  void drop(Time, std::int64_t id, Reason reason) override {
    actions.push_back(Drop{requests_.caller_id(id), reason});
    requests_.leave(id);
  }

  std::vector<std::int64_t> preempt(Time, int) override { throw std::logic_error("this policy does not preempt"); }

  void set_timer(Time now, Time at, std::size_t) override { actions.push_back(SetTimer{std::max(at, now)}); }

  std::vector<Action> actions;

 private:
  void empty(Gpu& gpu) {
    gpu.present = false;
    while (!gpu.batches.empty()) end_first(gpu);
  }
  void end(Gpu& gpu, std::int64_t run) {
    if (!gpu.batches.empty() && gpu.batches.front().run == run) end_first(gpu);
  }
  void end_first(Gpu& gpu) {
    for (const std::int64_t id : gpu.batches.front().requests) requests_.leave(id);
    forget_batch(gpu);
  }

  RequestTable& requests_;
  std::int64_t runs_ = 0;
};

class LivePolicy final : public Decider {
 public:
  LivePolicy(Setup setup, const Parameters& parameters,
             std::unique_ptr<Policy> (*make)(const Setup&, const Parameters&))
      : setup_(std::move(setup)), books_(setup_, requests_), policy_(make(setup_, parameters)) {
    if (!policy_) throw std::invalid_argument("no native twin of policy " + parameters.policy + " decides live");
  }

  bool listens_to_profiler() const override { return policy_->listens_to_profiler(); }

  std::vector<Action> decide(Time now, const Happenings& happenings) override {
    return decide(now, happenings.arrivals, happenings.events);
  }
  std::vector<Action> decide(Time now, const std::vector<Arrival>& arrivals, const std::vector<Event>& events) {
    for (const Arrival& arrival : arrivals) check(arrival);
    for (const Event& event : events) books_.hear(event);
    const std::int64_t first = requests_.place(arrivals);
    const Arrivals columns = requests_.columns();
    books_.actions.clear();
    policy_->decide({now, first, first + static_cast<std::int64_t>(arrivals.size()), events, columns}, books_);
    return std::move(books_.actions);
  }

 private:
  void check(const Arrival& arrival) const {
    const auto& known = setup_.models.at(static_cast<std::size_t>(arrival.model)).dynamic;
    if (known && (arrival.application < 0 || arrival.application >= std::ssize(known->history)))
      throw std::invalid_argument("application " + std::to_string(arrival.application) +
                                  ": must be one of the model's");
    const auto& lengths = setup_.models[static_cast<std::size_t>(arrival.model)].lengths;
    if (lengths && (arrival.bucket < 0 || arrival.bucket >= std::ssize(lengths->longest)))
      throw std::invalid_argument("bucket " + std::to_string(arrival.bucket) + ": must be one of the model's");
  }

  Setup setup_;
  RequestTable requests_;
  LiveBooks books_;
  std::unique_ptr<Policy> policy_;
};

}  // namespace astrarium
