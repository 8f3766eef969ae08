// The scheduler of the native front: a policy's twin decides over tickets, batches go to workers, answers come back.
// It handles tickets, orders and times; no tensor comes near it. Time is an argument, so a test can be its clock.
//
// When a plan has drifted, `begin` lets a fresh policy take over: what waits is handed on, and a GPU that still works
// for the old one is away in the books of the new until it is done. What the Python reference does is in
// astrarium.server.control (scheduler, control_room, desk).
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../live_policy.h"
#include "admission.h"
#include "batch_books.h"
#include "draws.h"
#include "order.h"
#include "ticket.h"

namespace astrarium::front {

struct Order {
  int gpu;
  std::string packet;
};

using MakePolicy = std::unique_ptr<Policy> (*)(const Setup&, const Parameters&);

class Scheduler {
 public:
  Scheduler(int gpus, Admission& admission, MakePolicy make)
      : admission_(admission), make_(make), gpus_(static_cast<std::size_t>(gpus)) {}

  // Tell policies that listen what this share of the requests would have taken alone.
  void profile(double share, std::uint64_t seed) { profiled_share_ = share, draws_ = Draws(seed); }

  // --- what happened

  // A fresh policy decides from now on; a setup that none can be made for changes nothing.
  void begin(Setup setup, Parameters parameters, Time now) {
    auto policy = std::make_unique<LivePolicy>(setup, parameters, make_);
    setup_ = std::move(setup), parameters_ = std::move(parameters), policy_ = std::move(policy);
    base_ = now, timer_ = kForever;
    arrivals_.clear(), news_.clear();
    for (std::size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
      for (Flight& flight : gpus_[gpu].flights) flight.ours = false;
      gpus_[gpu].away = !gpus_[gpu].present || !gpus_[gpu].flights.empty();
      if (gpus_[gpu].away) tell(Happened::kGpuLeft, static_cast<int>(gpu));
    }
    for (const std::int64_t id : all_waiting()) tell_of(id);
    admission_.plan(setup_, present(), now);
  }

  void gpu_joined(int gpu, Time now) {
    at(gpu).present = true;
    if (!policy_) return;
    joins(gpu);
    admission_.plan(setup_, present(), now);
  }

  // Its worker is gone, and nobody will write for its batches any more; *reason* says what became of it.
  void gpu_left(int gpu, const std::string& reason, Time now) {
    Worker& worker = at(gpu);
    worker.present = false;
    const std::vector<Flight> flights = std::exchange(worker.flights, {});
    if (!policy_) return;
    if (!std::exchange(worker.away, true)) tell(Happened::kGpuLeft, gpu);
    for (const Flight& flight : flights)
      for (const Part& part : flight.parts) lost(part, gpu, reason, now);
    admission_.plan(setup_, present(), now);
  }

  void arrive(Ticket* ticket, Time now) {
    ticket->open_parts = ticket->rows;
    for (int row = 0; row < ticket->rows; ++row) wait({ticket, row}, now);
  }

  // What a worker said; false where it is not about a batch, and others must hear it.
  bool hear(int gpu, std::string_view packet, Time now) {
    if (auto done = express::NewsScan(packet).batch_done()) return believe(*done, now), finished(gpu, *done), true;
    if (const auto broken = express::NewsScan(packet).batch_broken()) return failed(gpu, *broken), true;
    return false;
  }

  // --- deciding

  // Decide on all that has happened; returns when to be asked again at the latest.
  Time step(Time now) {
    if (!policy_) return kForever;
    look(now);
    if (arrivals_.empty() && news_.empty() && now < timer_) return timer_;
    if (now >= timer_) timer_ = kForever;
    try {
      decide(now);
    } catch (const std::exception& error) {
      policy_failed(error.what(), now);
    }
    return timer_;
  }

  // End all that is open; the policy is asked no more.
  void close() {
    policy_.reset();
    for (const std::int64_t id : all_waiting()) end(leave(id), Outcome::kDropped, Cause::kUnserved, "");
    for (Worker& worker : gpus_)
      for (const Flight& flight : std::exchange(worker.flights, {}))
        for (const Part& part : flight.parts) end(part, Outcome::kFailed, Cause::kModelError, "the server stopped before the batch ended");
  }

  // --- what comes of it: whoever drives this takes these away after each call

  std::vector<Order> orders;
  std::vector<Ticket*> ended;
  BatchBooks books;

  // --- questions

  std::int64_t waiting() const { return waiting_; }
  std::int64_t retried(int model) const {
    return static_cast<std::size_t>(model) < retried_.size() ? retried_[static_cast<std::size_t>(model)] : 0;
  }
  std::int64_t policy_errors() const { return policy_errors_; }
  const std::string& last_policy_error() const { return last_policy_error_; }

  // How many tickets are here, counted where they lie: each that has arrived, until it is taken away from `ended`.
  std::int64_t held() {
    ++audit_;
    std::int64_t found = std::ssize(ended);
    const auto see = [&](const Part& part) { found += std::exchange(part.ticket->seen, audit_) != audit_; };
    for (const Waiting& one : parts_)
      if (one.waits) see(one.part);
    for (const Worker& worker : gpus_)
      for (const Flight& flight : worker.flights) std::for_each(flight.parts.begin(), flight.parts.end(), see);
    return found;
  }

  // Whether no batch is under way.
  bool at_rest() const {
    return std::all_of(gpus_.begin(), gpus_.end(), [](const Worker& worker) { return worker.flights.empty(); });
  }

  // The oldest batch of a GPU's worker, and how long it may take.
  std::optional<std::pair<std::int64_t, Time>> oldest(int gpu) const {
    const auto& flights = gpus_[static_cast<std::size_t>(gpu)].flights;
    if (flights.empty()) return std::nullopt;
    return std::pair(flights.front().tag, flights.front().limit);
  }

 private:
  static constexpr Time kShortestLimit = 1'000 * kMillisecond;  // before a worker is taken for stuck
  static constexpr int kStuckAfter = 10;                        // times its estimate
  static constexpr Time kLookEvery = 10 * kMillisecond;         // a tenth of what limits are judged over

  struct Flight {
    std::int64_t tag;
    int model;
    bool ours;  // of the policy that decides now
    std::vector<Part> parts;
    Time dispatched, planned_end, limit;
    std::int64_t run;  // as that policy counts them
  };

  struct Worker {
    bool present = false;
    bool away = true;  // in the policy's books
    std::vector<Flight> flights;  // a few
  };

  struct Waiting {
    Part part;
    Time deadline;  // as planned
    bool waits;
    std::int64_t sequence;
  };

  Worker& at(int gpu) { return gpus_[static_cast<std::size_t>(gpu)]; }
  int present() const {
    return static_cast<int>(std::count_if(gpus_.begin(), gpus_.end(), [](const Worker& worker) { return worker.present; }));
  }

  // Follow the rates at which calls are answered.
  void look(Time now) {
    if (now < look_at_) return;
    look_at_ = now + kLookEvery;
    admission_.look(now);
  }

  // parts

  void wait(const Part& part, Time now) {
    std::int64_t id = std::ssize(parts_);
    if (free_.empty()) parts_.push_back({});
    else id = free_.back(), free_.pop_back();
    parts_[static_cast<std::size_t>(id)] = {part, planned(*part.ticket, now), true, sequence_++};
    ++waiting_;
    if (policy_) tell_of(id);
  }

  // In the order in which they came.
  std::vector<std::int64_t> all_waiting() const {
    std::vector<std::int64_t> found;
    for (std::size_t id = 0; id < parts_.size(); ++id)
      if (parts_[id].waits) found.push_back(static_cast<std::int64_t>(id));
    std::sort(found.begin(), found.end(), [this](std::int64_t a, std::int64_t b) {
      return parts_[static_cast<std::size_t>(a)].sequence < parts_[static_cast<std::size_t>(b)].sequence;
    });
    return found;
  }

  void tell_of(std::int64_t id) {
    const Waiting& one = parts_[static_cast<std::size_t>(id)];
    arrivals_.push_back({id, one.part.ticket->model, one.part.ticket->received - base_, one.deadline - base_, one.part.ticket->application});
  }

  void tell(Happened what, int gpu, std::int64_t run = -1, Time started = 0, Time ended = 0) {
    news_.push_back({0, 0, what, gpu, run, started, std::max<Time>(ended, 0)});
  }

  Part leave(std::int64_t id) {
    Waiting& one = parts_[static_cast<std::size_t>(id)];
    one.waits = false;
    --waiting_;
    free_.push_back(id);
    return one.part;
  }

  // The deadline to plan with: by it a lone request can still be tried, if it can be at all.
  Time planned(const Ticket& ticket, Time now) const {
    const Time soonest = now + admission_.needed(ticket.model);
    return std::max(ticket.deadline - admission_.margin(ticket.model), std::min(ticket.deadline, soonest));
  }

  void end(const Part& part, Outcome outcome, Cause cause, std::string_view reason) {
    Ticket& ticket = *part.ticket;
    if (outcome > ticket.outcome) ticket.outcome = outcome, ticket.cause = cause, ticket.reason = reason;
    if (--ticket.open_parts > 0) return;
    if (ticket.outcome == Outcome::kInTime) admission_.limit(ticket.model).answered();
    ended.push_back(&ticket);
  }

  void lost(const Part& part, int gpu, const std::string& reason, Time now) {
    Ticket& ticket = *part.ticket;
    const bool in_time = now + admission_.needed(ticket.model) <= ticket.deadline;
    if (!ticket.retried && in_time) {
      ticket.retried = true;
      retried_.resize(std::max(retried_.size(), static_cast<std::size_t>(ticket.model) + 1));
      ++retried_[static_cast<std::size_t>(ticket.model)];
      return wait(part, now);
    }
    const char* why = ticket.retried ? "it was the second try" : "it is too late to try again";
    end(part, Outcome::kFailed, Cause::kWorkerLost, "the worker of GPU " + std::to_string(gpu) + " " + reason + ", and " + why);
  }

  // batches

  std::optional<Flight> take(int gpu, std::int64_t tag) {
    auto& flights = at(gpu).flights;
    if (flights.empty() || flights.front().tag != tag) return std::nullopt;
    Flight flight = std::move(flights.front());
    flights.erase(flights.begin());
    return flight;
  }

  // Nothing that a worker tells of can have happened later than now.
  static void believe(express::BatchDone& done, Time now) {
    for (Time* time : {&done.received, &done.started, &done.computing, &done.computed, &done.finished}) *time = std::clamp<Time>(*time, 0, now);
  }

  void finished(int gpu, const express::BatchDone& done) {
    auto flight = take(gpu, done.run);
    if (!flight) return;
    const bool told = done.shapes && done.shapes->size() == flight->parts.size();
    for (std::size_t member = 0; member < flight->parts.size(); ++member) {
      const Part& part = flight->parts[member];
      Ticket& ticket = *part.ticket;
      if (told) shape(ticket, part.row, (*done.shapes)[member]);
      ticket.gpu = gpu, ticket.batch_size = static_cast<int>(flight->parts.size()), ticket.batch = flight->tag;
      ticket.dispatched = flight->dispatched, ticket.planned_end = flight->planned_end;
      ticket.started = done.started, ticket.finished = done.finished;
      if (done.shapes && !told) end(part, Outcome::kFailed, Cause::kModelError, "the worker's answer is not what it said it is");
      else end(part, Outcome::kInTime, Cause::kNone, "");
    }
    const BatchRecord record{flight->tag, gpu, flight->model, static_cast<int>(flight->parts.size()), flight->dispatched,
                             flight->planned_end, done.received, done.started, done.computing, done.computed, done.finished};
    books.add(record);
    left(gpu, *flight, Happened::kBatchFinished, done.started, done.started + record.kept_gpu());
    if (flight->ours) profiled(*flight, done.own_times);
  }

  void profiled(const Flight& flight, const std::vector<std::int64_t>& own_times) {
    if (!policy_ || !policy_->listens_to_profiler() || !setup_.models[static_cast<std::size_t>(flight.model)].dynamic) return;
    for (std::size_t member = 0; member < std::min(own_times.size(), flight.parts.size()); ++member)
      if (draws_.share() < profiled_share_)
        tell(Happened::kRequestProfiled, flight.model, flight.parts[member].ticket->application,
             std::clamp<Time>(own_times[member], 0, kLongest));
  }

  static void shape(Ticket& ticket, int row, std::vector<Written> shapes) {
    ticket.reply_shapes.resize(static_cast<std::size_t>(ticket.rows));
    ticket.reply_shapes[static_cast<std::size_t>(row)] = std::move(shapes);
  }

  void failed(int gpu, const express::BatchBroken& broken) {
    auto flight = take(gpu, broken.run);
    if (!flight) return;
    for (const Part& part : flight->parts) end(part, Outcome::kFailed, Cause::kModelError, broken.error);
    left(gpu, *flight, Happened::kBatchFailed, broken.started, broken.finished);
  }

  // A batch has left its GPU: tell the policy, or, where it was an earlier one's, let the GPU join once it is idle.
  void left(int gpu, const Flight& flight, Happened what, Time started, Time ended) {
    if (!policy_) return;
    if (!flight.ours) return joins(gpu);
    tell(what, gpu, flight.run, started - base_, ended - base_);
  }

  void joins(int gpu) {
    Worker& worker = at(gpu);
    if (!worker.away || !worker.present || !worker.flights.empty()) return;
    worker.away = false;
    tell(Happened::kGpuJoined, gpu);
  }

  // decisions

  void decide(Time now) {
    const std::vector<Decision> decisions = policy_->decide(now - base_, arrivals_, news_);
    arrivals_.clear(), news_.clear();
    for (const Decision& made : decisions) carry_out(made, now);
  }

  void carry_out(const Decision& made, Time now) {
    switch (made.kind) {
      case Decision::kDispatch: return dispatch(made, now);
      case Decision::kDrop: return end(leave(made.ids[0]), Outcome::kDropped, made.reason == kExpired ? Cause::kExpired : Cause::kSacrificed, "");
      case Decision::kTimer: timer_ = made.at >= kForever ? kForever : base_ + made.at;
    }
  }

  void dispatch(const Decision& made, Time now) {
    std::vector<Part> parts;
    parts.reserve(made.ids.size());
    for (const std::int64_t id : made.ids) parts.push_back(leave(id));
    const int size = static_cast<int>(parts.size()), model = parts[0].ticket->model;
    const Time estimate = setup_.models[static_cast<std::size_t>(model)].latency[static_cast<std::size_t>(size)];
    const Time delay = setup_.network.delay(size), start = std::max(base_ + made.at, now + delay);
    // The delay is what the way may take; where it takes less, nobody waits for the rest of it.
    orders.push_back({made.gpu, run_batch(++tag_, model, parts, std::max<Time>(0, start - delay))});
    at(made.gpu).flights.push_back({tag_, model, true, std::move(parts), now, start + estimate,
                                    std::max(kShortestLimit, kStuckAfter * estimate), made.run});
  }

  // What waits is lost with a policy that failed, and a fresh one takes over.
  void policy_failed(const std::string& error, Time now) {
    ++policy_errors_;
    last_policy_error_ = error;
    const std::string reason = "the policy " + parameters_.policy + " failed: " + error;
    for (const std::int64_t id : all_waiting()) end(leave(id), Outcome::kFailed, Cause::kPolicyError, reason);
    begin(setup_, parameters_, now);
  }

  Admission& admission_;
  MakePolicy make_;
  std::vector<Worker> gpus_;
  Setup setup_;
  Parameters parameters_;
  std::unique_ptr<LivePolicy> policy_;
  Time base_ = 0, timer_ = kForever, look_at_ = 0;
  std::vector<Arrival> arrivals_;
  std::vector<Event> news_;
  std::vector<Waiting> parts_;  // by id
  std::vector<std::int64_t> free_, retried_;
  std::int64_t waiting_ = 0, sequence_ = 0, tag_ = 0, policy_errors_ = 0, audit_ = 0;
  std::string last_policy_error_;
  double profiled_share_ = 0;
  Draws draws_;
};

}  // namespace astrarium::front
