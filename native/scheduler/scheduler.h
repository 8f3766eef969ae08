// The scheduler of the native front: a policy, or its twin, decides over tickets, batches go to workers, answers come
// back. It handles tickets, orders and times; no tensor comes near it. Time is an argument, so a test can be its clock.
//
// When a plan has drifted, `begin` lets a fresh policy take over: what waits is handed on, and a GPU that still works
// for the old one is away in the books of the new until it is done.
//
// A GPU has a worker that all models share, whose number is the GPU's. A model that broke workers may have workers of
// its own, one on each GPU (`set_apart`). The batches of a GPU run one by one all the same: a worker gets no order
// while another one on that GPU has a batch.
//
// A lost worker: the batch that broke it is suspect, all its others go back to the policy. Suspects run alone, one by
// one, on the successor before the policy hears of it; what breaks a worker alone is put in quarantine.
//
// A policy may cancel the batch that runs on a GPU. Its parts wait again at once, and may run in other batches, while
// the batch stays with its worker, which may still write for them: until the worker has said that it is done, none of
// their tickets goes home.
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

#include "common/draws.h"
#include "common/id_map.h"
#include "common/rounded_duration.h"
#include "exchange/admission.h"
#include "exchange/ticket.h"
#include "messages/order.h"
#include "policies/live_policy.h"
#include "scheduler/batch_books.h"
#include "scheduler/quarantine.h"

namespace astrarium::front {

struct Order {
  int worker;
  std::string packet;
};

// How a worker was lost.
struct Loss {
  std::string reason;
  bool by_its_work = false;  // what it ran may have broken it; else somebody outside ended it
  std::int64_t run = -1;     // the batch that it named in its last words; -1: it named none
};

// Whose fault a loss was: a model (-1: it ran none), and so many of its calls. It is certain where the work broke the
// worker; else somebody outside may have ended it.
struct Blame {
  int model = -1, calls = 0;
  bool certain = false;
};

class Scheduler {
 public:
  // *memory* is where tickets have their inputs.
  Scheduler(int gpus, Admission& admission, const char* memory)
      : quarantine(memory), admission_(admission), gpus_(static_cast<std::size_t>(gpus)) {}

  // Tell policies that listen what this share of the requests would have taken alone.
  void profile(double share, std::uint64_t seed) { profiled_share_ = share, draws_ = Draws(seed); }

  // --- what happened

  // A fresh policy decides from now on; a setup that none can be made for changes nothing.
  void begin(Setup setup, std::string name, MakeDecider make, Time now) {
    auto policy = make(setup);
    setup_ = std::move(setup);
    name_ = std::move(name);
    make_ = std::move(make);
    policy_ = std::move(policy);
    base_ = now;
    timer_ = kForever;
    heard_.clear();
    recoveries_.clear();
    number_waiting(policy_->is_python());
    for (std::size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
      for (Flight& flight : gpus_[gpu].flights) flight.ours = false;
      gpus_[gpu].away = !gpus_[gpu].present || !gpus_[gpu].flights.empty();
      if (gpus_[gpu].away) tell(Happened::kGpuLeft, static_cast<int>(gpu));
    }
    for (const std::size_t slot : all_waiting()) tell_of(slot);
    admission_.plan(setup_, present(), now);
  }

  // A worker has its models, and can run batches.
  void worker_joined(int worker, Time now) {
    if (worker >= std::ssize(gpus_)) return apart_joined(worker, now);
    at(worker).present = true;
    if (!policy_) return;
    wait_again(worker, now);
    joins(worker, now);
    admission_.plan(setup_, present(), now);
  }

  // A worker is gone, and nobody will write for its batches any more.
  Blame worker_left(int worker, const Loss& loss, Time now) {
    std::vector<Flight> lost = worker < std::ssize(gpus_) ? shared_left(worker) : apart_left(worker, now);
    if (!policy_) return {};
    const Blame blame = judge(lost, loss, worker, now);
    admission_.plan(setup_, present(), now);
    return blame;
  }

  // A model has workers of its own from now on, one on each GPU; without any it is back with the others, and what
  // waited for its worker goes back to the policy. Nothing of it may be with its own workers then.
  void set_apart(int model, const std::vector<int>& workers, Time now) {
    std::erase_if(apart_, [model](const Apart& one) { return one.model == model; });
    for (std::size_t gpu = 0; gpu < workers.size(); ++gpu)
      apart_.push_back({workers[gpu], static_cast<int>(gpu), model});
    for (int gpu = 0; gpu < std::ssize(gpus_); ++gpu)
      for (Flight& flight : at(gpu).flights)
        if (!flight.sent && flight.model == model) flight.worker = worker_for(gpu, model);
    for (int gpu = 0; workers.empty() && gpu < std::ssize(gpus_); ++gpu) wait_again(gpu, now);
  }

  void arrive(Ticket* ticket, Time now) {
    ticket->open_parts = ticket->rows;
    if (const QuarantinedInput* held = quarantine.find(*ticket, now)) return refuse(ticket, *held, now);
    for (int row = 0; row < ticket->rows; ++row) wait({ticket, row}, now);
  }

  // What a worker said; false where it is not about a batch, and others must hear it.
  bool hear(int worker, std::string_view packet, Time now) {
    if (auto done = express::NewsScan(packet).batch_done())
      return believe(*done, now), finished(worker, *done, now), true;
    if (const auto broken = express::NewsScan(packet).batch_broken()) return failed(worker, *broken, now), true;
    if (const auto stopped = express::NewsScan(packet).batch_cancelled()) return cancelled(worker, *stopped, now), true;
    return false;
  }

  // --- deciding

  // Decide on all that has happened; returns when to be asked again at the latest.
  Time step(Time now) {
    if (!policy_) return kForever;
    look(now);
    if (!suspects_.empty()) give_up_late(now);
    if (!recoveries_.empty()) recover(now);
    if (heard_.empty() && now < timer_) return next();
    if (now >= timer_) timer_ = kForever;
    try {
      decide(now);
    } catch (const std::exception& error) {
      policy_failed(error.what(), now);
    }
    return next();
  }

  // End all that is open; the policy is asked no more.
  void close() {
    policy_.reset();
    for (const std::size_t slot : all_waiting()) end(leave_slot(slot), Outcome::kDropped, Cause::kUnserved, "");
    for (const Suspect& one : std::exchange(suspects_, {}))
      end(one.part, Outcome::kFailed, Cause::kWorkerLost, one.reason + ", and the server stopped");
    for (Gpu& gpu : gpus_)
      for (const Flight& flight : std::exchange(gpu.flights, {})) {
        if (flight.cancelled) let_go(flight);
        else
          for (const Part& part : flight.parts)
            end(part, Outcome::kFailed, Cause::kModelError, "the server stopped before the batch ended");
      }
  }

  // --- what comes of it: whoever drives this takes these away after each call

  std::vector<Order> orders;
  std::vector<Ticket*> ended;
  BatchBooks books;
  Quarantine quarantine;

  // --- questions

  std::int64_t waiting() const { return waiting_; }
  std::int64_t retried(int model) const {
    return static_cast<std::size_t>(model) < retried_.size() ? retried_[static_cast<std::size_t>(model)] : 0;
  }
  // What the policy needs to decide now; nothing where there is nothing to decide.
  std::shared_ptr<void> enter(Time now) { return heard_.empty() && now < timer_ ? nullptr : policy_->enter(); }
  // Whether deciding takes the time that Python takes.
  bool asks_python() const { return policy_ && policy_->is_python(); }
  std::int64_t policy_errors() const { return policy_errors_; }
  const std::string& last_policy_error() const { return last_policy_error_; }

  // How many tickets are here, counted where they lie: each that has arrived, until it is taken away from `ended`.
  std::int64_t held() {
    ++audit_;
    std::int64_t found = std::ssize(ended);
    const auto see = [&](const Part& part) { found += std::exchange(part.ticket->seen, audit_) != audit_; };
    for (const Waiting& one : parts_)
      if (one.waits) see(one.part);
    for (const Suspect& one : suspects_) see(one.part);
    for (const Gpu& gpu : gpus_)
      for (const Flight& flight : gpu.flights) std::for_each(flight.parts.begin(), flight.parts.end(), see);
    return found;
  }

  // Whether no batch is under way.
  bool at_rest() const {
    return std::all_of(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.flights.empty(); });
  }

  // The oldest batch of a worker, and how long it may take.
  std::optional<std::pair<std::int64_t, Time>> oldest(int worker) const {
    const int gpu = gpu_of(worker);
    if (gpu < 0) return std::nullopt;
    const auto& flights = gpus_[static_cast<std::size_t>(gpu)].flights;
    if (flights.empty() || flights.front().worker != worker || !flights.front().sent) return std::nullopt;
    return std::pair(flights.front().tag, flights.front().limit);
  }

 private:
  static constexpr Time kShortestLimit = 1'000 * kMillisecond;  // before a worker is taken for stuck
  static constexpr Time kShortestApart =
      200 * kMillisecond;                 // the same of a model's own one: it holds up the others of its GPU
  static constexpr int kStuckAfter = 10;  // times its estimate
  static constexpr Time kLookEvery = 10 * kMillisecond;  // a tenth of what limits are judged over

  struct Flight {
    std::int64_t tag;
    int model, worker;
    bool ours;  // of the policy that decides now
    std::vector<Part> parts;
    Time dispatched, planned_end, limit;
    std::int64_t run;   // as that policy counts them
    std::string order;  // until it is sent
    bool sent = false;
    bool cancelled = false;  // its parts are elsewhere by now; it is sent, and its worker has not said that it is done

    bool is_solo() const { return run < 0 && parts.size() == 1; }  // no policy knows of it
  };

  struct Gpu {
    bool present = false;         // its shared worker
    bool away = true;             // in the policy's books
    std::vector<Flight> flights;  // a few, of all its workers
  };

  // A worker with one model.
  struct Apart {
    int worker, gpu, model;
    bool present = false;
  };

  // A part that no policy knows of: it was in a batch that broke its worker, and is to run *alone*; or its model's own
  // worker is away.
  struct Suspect {
    Part part;
    bool alone;
    std::string reason;
  };

  struct Waiting {
    Part part;
    Time deadline;  // as planned
    bool waits;
  };

  // A GPU whose batch was cancelled before it was sent: to the policy it recovers until then.
  struct Recovery {
    Time at, stopped;
    int gpu;
    std::int64_t run;
  };

  Gpu& at(int gpu) { return gpus_[static_cast<std::size_t>(gpu)]; }
  int present() const {
    return static_cast<int>(std::count_if(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.present; }));
  }

  // workers

  const Apart* apart(int worker) const {
    const auto found =
        std::find_if(apart_.begin(), apart_.end(), [worker](const Apart& one) { return one.worker == worker; });
    return found == apart_.end() ? nullptr : &*found;
  }
  Apart* apart(int worker) { return const_cast<Apart*>(std::as_const(*this).apart(worker)); }
  int gpu_of(int worker) const {
    if (worker < std::ssize(gpus_)) return worker;
    const Apart* one = apart(worker);
    return one == nullptr ? -1 : one->gpu;
  }
  // Which worker of a GPU runs a model.
  int worker_for(int gpu, int model) const {
    for (const Apart& one : apart_)
      if (one.gpu == gpu && one.model == model) return one.worker;
    return gpu;
  }
  bool is_present(int worker) {
    if (worker < std::ssize(gpus_)) return at(worker).present;
    const Apart* one = apart(worker);
    return one != nullptr && one->present;
  }

  void apart_joined(int worker, Time now) {
    Apart* one = apart(worker);
    if (one == nullptr) return;
    one->present = true;
    if (!policy_) return;
    wait_again(worker, now);
    try_alone(worker, now);
  }

  // Its batches that have not ended; what another worker of the GPU runs meanwhile goes on, without the policy.
  std::vector<Flight> shared_left(int gpu) {
    Gpu& lost = at(gpu);
    lost.present = false;
    std::vector<Flight> left, goes_on;
    for (Flight& flight : std::exchange(lost.flights, {})) {
      const bool runs = flight.sent && flight.worker != gpu;
      flight.ours &= !runs;
      (runs ? goes_on : left).push_back(std::move(flight));
    }
    lost.flights = std::move(goes_on);
    if (policy_ && !std::exchange(lost.away, true)) tell(Happened::kGpuLeft, gpu);
    return left;
  }

  // The policy hears that each of its batches has failed; its GPU stays.
  std::vector<Flight> apart_left(int worker, Time now) {
    std::vector<Flight> lost;
    Apart* one = apart(worker);
    if (one == nullptr) return lost;
    one->present = false;
    auto& flights = at(one->gpu).flights;
    while (!flights.empty() && flights.front().sent && flights.front().worker == worker)
      lost.push_back(take_first(one->gpu));
    for (const Flight& flight : lost) {  // in their order
      const auto what = flight.cancelled ? Happened::kBatchPreempted : Happened::kBatchFailed;
      tell_end(one->gpu, flight, what, now, now, "the model's own worker is gone");
    }
    if (policy_) go_on(one->gpu, now);
    return lost;
  }

  // The batch that broke a worker is suspect; its others go back to the policy.
  Blame judge(const std::vector<Flight>& lost, const Loss& loss, int worker, Time now) {
    const Flight* guilty = guilty_of(lost, loss);
    for (const Flight& flight : lost)
      if (flight.cancelled) let_go(flight);  // its parts wait, or run elsewhere
      else if (&flight == guilty) suspect(flight, loss, now);
      else if (flight.is_solo())
        suspects_.push_back(
            {flight.parts[0], true, "the worker of GPU " + std::to_string(gpu_of(worker)) + " " + loss.reason});
      else
        for (const Part& part : flight.parts) lost_beside(part, worker, loss.reason, now);
    if (guilty == nullptr && (lost.empty() || !lost.front().sent)) return {};
    const Flight& first = guilty == nullptr ? lost.front() : *guilty;
    return {first.model, static_cast<int>(first.parts.size()), guilty != nullptr};
  }

  // The one that the worker named, or the first that it had. That somebody outside ended a worker is believed of a call
  // once.
  static const Flight* guilty_of(const std::vector<Flight>& lost, const Loss& loss) {
    if (lost.empty() || !lost.front().sent) return nullptr;
    const auto named =
        std::find_if(lost.begin(), lost.end(), [&](const Flight& one) { return one.sent && one.tag == loss.run; });
    const Flight& first = named == lost.end() ? lost.front() : *named;
    const bool again =
        std::any_of(first.parts.begin(), first.parts.end(), [](const Part& part) { return part.ticket->retried; });
    return loss.by_its_work || again ? &first : nullptr;
  }

  // Its parts run alone once more; one that was alone will break any worker.
  void suspect(const Flight& flight, const Loss& loss, Time now) {
    const std::string told = "the worker of GPU " + std::to_string(gpu_of(flight.worker)) + " " + loss.reason;
    if (flight.parts.size() == 1) return convict(flight.parts[0], told, now);
    for (const Part& part : flight.parts)
      suspects_.push_back(
          {part, true,
           told + " while it ran a batch of " + std::to_string(flight.parts.size()) + " calls, this one among them"});
  }

  void convict(const Part& part, const std::string& told, Time now) {
    const std::string reason = told + " while it ran this call alone";
    quarantine.add(*part.ticket, reason, now);
    end(part, Outcome::kFailed, Cause::kWorkerLost,
        reason + "; the same input is refused for " + rounded_duration(Quarantine::kLasts));
  }

  void refuse(Ticket* ticket, const QuarantinedInput& held, Time now) {
    ticket->outcome = Outcome::kFailed;
    ticket->cause = Cause::kQuarantined;
    ticket->reason = told_of(held, now);
    ticket->open_parts = 0;
    ended.push_back(ticket);
  }

  // suspects

  Time last_chance(const Part& part) const { return part.ticket->deadline - admission_.needed(part.ticket->model); }

  // When to be asked again.
  Time next() const {
    Time soonest = heard_.events.empty() ? timer_ : 0;  // a batch that could not be sent has failed at once
    for (const Recovery& one : recoveries_) soonest = std::min(soonest, one.at);
    for (const Suspect& one : suspects_) soonest = std::min(soonest, last_chance(one.part) + 1);
    return soonest;
  }

  void give_up_late(Time now) {
    std::erase_if(suspects_, [&](const Suspect& one) {
      const bool late = now > last_chance(one.part);
      if (late) end(one.part, Outcome::kFailed, Cause::kWorkerLost, one.reason + ", and it is too late to try again");
      return late;
    });
  }

  // What another of them did, or another row of the same call, these would do too.
  void give_up_held(Time now) {
    std::erase_if(suspects_, [&](const Suspect& one) {
      if (one.part.ticket->outcome == Outcome::kFailed)
        return end(one.part, Outcome::kFailed, Cause::kWorkerLost, one.reason), true;
      const QuarantinedInput* held = quarantine.find(*one.part.ticket, now);
      if (held != nullptr) end(one.part, Outcome::kFailed, Cause::kQuarantined, told_of(*held, now));
      return held != nullptr;
    });
  }

  static std::string told_of(const QuarantinedInput& held, Time now) {
    return held.reason + "; the same input is refused for another " + rounded_duration(held.until - now);
  }

  // Runs the next suspect of a worker alone; false where it has none.
  bool try_alone(int worker, Time now) {
    if (suspects_.empty() || !is_present(worker)) return false;
    give_up_late(now);
    give_up_held(now);
    const auto found = std::find_if(suspects_.begin(), suspects_.end(),
                                    [&](const Suspect& one) { return one.alone && runs_on(one.part, worker); });
    if (found == suspects_.end()) return false;
    const Part part = found->part;
    suspects_.erase(found);
    count_retry(*part.ticket);
    launch(gpu_of(worker), {part}, false, now, -1, now);
    return true;
  }

  // What waited for this worker goes back to the policy.
  void wait_again(int worker, Time now) {
    std::vector<Part> parts;
    std::erase_if(suspects_, [&](const Suspect& one) {
      const bool waits = !one.alone && runs_on(one.part, worker);
      if (waits) parts.push_back(one.part);
      return waits;
    });
    for (const Part& part : parts) wait(part, now);
  }

  bool runs_on(const Part& part, int worker) const { return worker_for(gpu_of(worker), part.ticket->model) == worker; }

  // Follow the rates at which calls are answered.
  void look(Time now) {
    if (now < look_at_) return;
    look_at_ = now + kLookEvery;
    admission_.look(now);
  }

  // parts

  void wait(Part part, Time now) {
    part.number = next_number_++;
    const std::size_t slot = keep(part, now);
    if (policy_) tell_of(slot);
  }

  // Returns its slot.
  std::size_t keep(const Part& part, Time now) {
    std::size_t slot = parts_.size();
    if (free_.empty()) parts_.push_back({});
    else {
      slot = free_.back();
      free_.pop_back();
    }
    parts_[slot] = {part, planned(*part.ticket, now), true};
    ++waiting_;
    if (is_numbered_) slots_.add(part.number, static_cast<std::int32_t>(slot));
    return slot;
  }

  // In the order in which they came.
  std::vector<std::size_t> all_waiting() const {
    std::vector<std::size_t> found;
    for (std::size_t slot = 0; slot < parts_.size(); ++slot)
      if (parts_[slot].waits) found.push_back(slot);
    std::sort(found.begin(), found.end(),
              [this](std::size_t a, std::size_t b) { return parts_[a].part.number < parts_[b].part.number; });
    return found;
  }

  // Policies know parts by their slots, which is cheap, or by their numbers.
  void number_waiting(bool is_numbered) {
    is_numbered_ = is_numbered;
    slots_.clear();
    if (is_numbered_)
      for (const std::size_t slot : all_waiting())
        slots_.add(parts_[slot].part.number, static_cast<std::int32_t>(slot));
  }

  void tell_of(std::size_t slot) {
    const Waiting& one = parts_[slot];
    const std::int64_t id = is_numbered_ ? one.part.number : static_cast<std::int64_t>(slot);
    heard_.arrivals.push_back({id, one.part.ticket->model, one.part.ticket->received - base_, one.deadline - base_,
                               one.part.ticket->application});
  }

  void tell(Happened what, int gpu, std::int64_t run = -1, Time started = 0, Time ended = 0) {
    heard_.events.push_back({0, std::ssize(heard_.arrivals), what, gpu, run, started, std::max<Time>(ended, 0)});
  }

  // One that the policy knows by this id.
  Part leave(std::int64_t id) { return leave_slot(slot_of(id)); }
  std::size_t slot_of(std::int64_t id) const {
    const std::int64_t slot = is_numbered_ ? slots_.find(id) : id;
    if (slot < 0) throw std::invalid_argument("request " + std::to_string(id) + " does not wait");
    return static_cast<std::size_t>(slot);
  }
  Part leave_slot(std::size_t slot) {
    Waiting& one = parts_[slot];
    one.waits = false;
    --waiting_;
    free_.push_back(slot);
    if (is_numbered_) slots_.take(one.part.number);
    return one.part;
  }

  // The deadline to plan with: by it a lone request can still be tried, if it can be at all.
  Time planned(const Ticket& ticket, Time now) const {
    const Time soonest = now + admission_.needed(ticket.model);
    return std::max(ticket.deadline - admission_.margin(ticket.model), std::min(ticket.deadline, soonest));
  }

  void end(const Part& part, Outcome outcome, Cause cause, std::string_view reason) {
    Ticket& ticket = *part.ticket;
    if (outcome > ticket.outcome) {
      ticket.outcome = outcome;
      ticket.cause = cause;
      ticket.reason = reason;
    }
    if (--ticket.open_parts > 0) return;
    if (ticket.outcome == Outcome::kInTime) admission_.limit(ticket.model).answered();
    if (ticket.held == 0) ended.push_back(&ticket);
  }

  // No worker writes for a cancelled batch any more.
  void let_go(const Flight& flight) {
    for (const Part& part : flight.parts)
      if (--part.ticket->held == 0 && part.ticket->open_parts == 0) ended.push_back(part.ticket);
  }

  // A part that was with a lost worker, and not to blame.
  void lost_beside(const Part& part, int worker, const std::string& reason, Time now) {
    Ticket& ticket = *part.ticket;
    if (now + admission_.needed(ticket.model, now) <= ticket.deadline) return count_retry(ticket), wait(part, now);
    end(part, Outcome::kFailed, Cause::kWorkerLost,
        "the worker of GPU " + std::to_string(gpu_of(worker)) + " " + reason + ", and it is too late to try again");
  }

  void count_retry(Ticket& ticket) {
    if (std::exchange(ticket.retried, true)) return;
    retried_.resize(std::max(retried_.size(), static_cast<std::size_t>(ticket.model) + 1));
    ++retried_[static_cast<std::size_t>(ticket.model)];
  }

  // batches

  // The batch that a worker tells of: the first of its GPU.
  std::optional<Flight> take(int worker, std::int64_t tag) {
    const auto first = oldest(worker);
    if (!first || first->first != tag) return std::nullopt;
    return take_first(gpu_of(worker));
  }

  Flight take_first(int gpu) {
    auto& flights = at(gpu).flights;
    Flight flight = std::move(flights.front());
    flights.erase(flights.begin());
    return flight;
  }

  // Sends what can be sent: to one worker of a GPU at a time. A batch for a worker that is away has failed, and so has
  // an empty one; the policy hears of it when its turn has come.
  void advance(int gpu, Time now) {
    auto& flights = at(gpu).flights;
    while (!flights.empty() && !flights.front().sent &&
           (flights.front().parts.empty() || !is_present(flights.front().worker))) {
      const Flight flight = take_first(gpu);
      elsewhere(gpu, flight, now);
      left(gpu, flight, Happened::kBatchFailed, now, now, now,
           flight.parts.empty() ? "its inputs are refused" : "its model's own worker is away");
    }
    for (Flight& flight : flights) {
      if (flight.worker != flights.front().worker || flight.parts.empty()) return;
      if (!std::exchange(flight.sent, true)) orders.push_back({flight.worker, std::move(flight.order)});
    }
  }

  // A batch whose worker is away goes to a GPU where its model has one, or waits.
  void elsewhere(int gpu, const Flight& flight, Time now) {
    for (int other = 0; other < std::ssize(gpus_); ++other)
      if (is_present(worker_for(other, flight.model)) && !flight.is_solo())
        return launch(other, flight.parts, false, now, -1, now);
    for (const Part& part : flight.parts)
      suspects_.push_back(
          {part, flight.is_solo(), "the worker of its model on GPU " + std::to_string(gpu) + " is away"});
  }

  // Nothing that a worker tells of can have happened later than now.
  static void believe(express::BatchDone& done, Time now) {
    for (Time* time : {&done.received, &done.started, &done.computing, &done.computed, &done.finished})
      *time = std::clamp<Time>(*time, 0, now);
  }

  void finished(int worker, const express::BatchDone& done, Time now) {
    auto flight = take(worker, done.run);
    if (!flight) return;
    const int gpu = gpu_of(worker);
    if (flight->cancelled) return stopped(gpu, *flight, done.started, done.computed, done.finished, now);
    const bool told = done.shapes && done.shapes->size() == flight->parts.size();
    for (std::size_t member = 0; member < flight->parts.size(); ++member) {
      const Part& part = flight->parts[member];
      Ticket& ticket = *part.ticket;
      if (told) shape(ticket, part.row, (*done.shapes)[member]);
      ticket.gpu = gpu;
      ticket.batch_size = static_cast<int>(flight->parts.size());
      ticket.batch = flight->tag;
      ticket.dispatched = flight->dispatched;
      ticket.planned_end = flight->planned_end;
      ticket.started = done.started;
      ticket.finished = done.finished;
      if (done.shapes && !told)
        end(part, Outcome::kFailed, Cause::kModelError, "the worker's answer is not what it said it is");
      else end(part, Outcome::kInTime, Cause::kNone, "");
    }
    const BatchRecord record{flight->tag,        gpu,
                             flight->model,      static_cast<int>(flight->parts.size()),
                             flight->dispatched, flight->planned_end,
                             done.received,      done.started,
                             done.computing,     done.computed,
                             done.finished};
    books.add(record);
    left(gpu, *flight, Happened::kBatchFinished, done.started, done.started + record.kept_gpu(), now);
    if (flight->ours) profiled(*flight, done.own_times);
  }

  void profiled(const Flight& flight, const std::vector<std::int64_t>& own_times) {
    if (!policy_ || !policy_->listens_to_profiler() || !setup_.models[static_cast<std::size_t>(flight.model)].dynamic)
      return;
    for (std::size_t member = 0; member < std::min(own_times.size(), flight.parts.size()); ++member) {
      const Part& part = flight.parts[member];
      if (draws_.share() < profiled_share_)
        tell(Happened::kRequestProfiled, flight.model, part.ticket->application,
             std::clamp<Time>(own_times[member], 0, kLongest), part.number);
    }
  }

  static void shape(Ticket& ticket, int row, std::vector<Written> shapes) {
    ticket.reply_shapes.resize(static_cast<std::size_t>(ticket.rows));
    ticket.reply_shapes[static_cast<std::size_t>(row)] = std::move(shapes);
  }

  void failed(int worker, const express::BatchBroken& broken, Time now) {
    auto flight = take(worker, broken.run);
    if (!flight) return;
    if (flight->cancelled)
      return stopped(gpu_of(worker), *flight, broken.started, broken.finished, broken.finished, now);
    for (const Part& part : flight->parts) end(part, Outcome::kFailed, Cause::kModelError, broken.error);
    left(gpu_of(worker), *flight, Happened::kBatchFailed, broken.started, broken.finished, now, broken.error);
  }

  void cancelled(int worker, const express::BatchCancelled& told, Time now) {
    const auto first = oldest(worker);
    if (!first || first->first != told.run || !at(gpu_of(worker)).flights.front().cancelled) return;
    const Time started = std::clamp<Time>(told.started, 0, now), ended = std::clamp<Time>(told.stopped, 0, now);
    stopped(gpu_of(worker), take_first(gpu_of(worker)), started, ended, ended, now);
  }

  // A cancelled batch is over; it may have ended before its worker heard that it was cancelled.
  void stopped(int gpu, const Flight& flight, Time started, Time computed, Time ended, Time now) {
    let_go(flight);
    books.add_busy(gpu, ended, std::max<Time>(0, computed - std::max(started, flight.dispatched)));
    left(gpu, flight, Happened::kBatchPreempted, started, ended, now);
  }

  // A batch has left its GPU: tell the policy, or, where it was no batch of its own, let the GPU join once it is idle.
  void left(int gpu, const Flight& flight, Happened what, Time started, Time ended, Time now,
            std::string_view error = {}) {
    if (!policy_) return;
    tell_end(gpu, flight, what, started, ended, error);
    if (!flight.ours && flight.worker != gpu) try_alone(flight.worker, now);
    go_on(gpu, now);
  }
  void tell_end(int gpu, const Flight& flight, Happened what, Time started, Time ended, std::string_view error) {
    if (!policy_ || !flight.ours) return;
    tell(what, gpu, flight.run, started - base_, ended - base_);
    if (what == Happened::kBatchFailed) heard_.errors.emplace_back(error);
  }
  void go_on(int gpu, Time now) {
    advance(gpu, now);
    joins(gpu, now);
  }

  // A worker that is back runs the suspects of its predecessor before the policy hears of it.
  void joins(int gpu, Time now) {
    Gpu& joining = at(gpu);
    if (!joining.away || !joining.present || !joining.flights.empty() || try_alone(gpu, now)) return;
    joining.away = false;
    tell(Happened::kGpuJoined, gpu);
  }

  // decisions

  void decide(Time now) {
    const std::vector<Decision> decisions = policy_->decide(now - base_, heard_);
    heard_.clear();
    for (const Decision& made : decisions) carry_out(made, now);
  }

  void carry_out(const Decision& made, Time now) {
    switch (made.kind) {
      case Decision::kDispatch: return dispatch(made, now);
      case Decision::kDrop: return end(leave(made.ids[0]), Outcome::kDropped, cause_of(made.reason), made.why);
      case Decision::kPreempt: return preempt(made.gpu, made.run, now);
      case Decision::kTimer: timer_ = made.at >= kForever ? kForever : base_ + made.at;
    }
  }

  static Cause cause_of(Reason reason) {
    switch (reason) {
      case kExpired: return Cause::kExpired;
      case kSacrificed: return Cause::kSacrificed;
      case kUnserved: return Cause::kUnserved;
      default: return Cause::kOther;
    }
  }

  void dispatch(const Decision& made, Time now) {
    for (const std::int64_t id : made.ids) slot_of(id);  // all of them, or none leaves
    std::vector<Part> parts;
    parts.reserve(made.ids.size());
    for (const std::int64_t id : made.ids) parts.push_back(leave(id));
    const int model = parts[0].ticket->model;
    if (quarantine.has_any(model)) end_held(parts, now);
    if (!parts.empty()) return launch(made.gpu, std::move(parts), true, base_ + made.at, made.run, now);
    at(made.gpu).flights.push_back({++tag_, model, made.gpu, true, {}, now, now, kShortestLimit, made.run, {}});
    advance(made.gpu, now);
  }

  // The policy's batch on a GPU is cancelled: the policy knows that its parts wait again, and hears when the GPU has
  // recovered.
  void preempt(int gpu, std::int64_t run, Time now) {
    auto& flights = at(gpu).flights;
    const auto found = std::find_if(flights.begin(), flights.end(),
                                    [run](const Flight& one) { return one.ours && one.run == run && !one.cancelled; });
    if (found != flights.end())
      for (const Part& part : found->parts) keep(part, now);
    if (found != flights.end() && found->sent) return stop(*found);
    if (found != flights.end()) flights.erase(found);
    recoveries_.push_back({now + setup_.preemption_cost, now, gpu, run});
    advance(gpu, now);
  }

  void stop(Flight& flight) {
    flight.cancelled = true;
    for (const Part& part : flight.parts) ++part.ticket->held;
    orders.push_back({flight.worker, cancel_batch(flight.tag, setup_.preemption_cost)});
  }

  void recover(Time now) {
    std::erase_if(recoveries_, [&](const Recovery& one) {
      const bool over = now >= one.at;
      if (over) tell(Happened::kBatchPreempted, one.gpu, one.run, one.stopped - base_, one.stopped - base_);
      return over;
    });
  }

  // Ends parts whose inputs have broken a worker while they waited.
  void end_held(std::vector<Part>& parts, Time now) {
    std::erase_if(parts, [&](const Part& part) {
      const QuarantinedInput* held = quarantine.find(*part.ticket, now);
      if (held != nullptr) end(part, Outcome::kFailed, Cause::kQuarantined, told_of(*held, now));
      return held != nullptr;
    });
  }

  void launch(int gpu, std::vector<Part> parts, bool ours, Time at_earliest, std::int64_t run, Time now) {
    const int size = static_cast<int>(parts.size()), model = parts[0].ticket->model;
    const Time estimate = setup_.models[static_cast<std::size_t>(model)].latency[static_cast<std::size_t>(size)];
    const Time delay = setup_.network.delay(size), start = std::max(at_earliest, now + delay);
    // The delay is what the way may take; where it takes less, nobody waits for the rest of it.
    std::string order = run_batch(++tag_, model, parts, std::max<Time>(0, start - delay));
    const int worker = worker_for(gpu, model);
    const Time limit = std::max(worker == gpu ? kShortestLimit : kShortestApart, kStuckAfter * estimate);
    at(gpu).flights.push_back(
        {tag_, model, worker, ours, std::move(parts), now, start + estimate, limit, run, std::move(order)});
    advance(gpu, now);
  }

  // What waits is lost with a policy that failed, and a fresh one takes over.
  void policy_failed(const std::string& error, Time now) {
    ++policy_errors_;
    last_policy_error_ = error;
    const std::string reason = "the policy " + name_ + " failed: " + error;
    for (const std::size_t slot : all_waiting()) end(leave_slot(slot), Outcome::kFailed, Cause::kPolicyError, reason);
    heard_.clear();
    try {
      begin(setup_, name_, make_, now);
    } catch (const std::exception& again) {  // the one that failed stays
      last_policy_error_ = again.what();
    }
  }

  Admission& admission_;
  std::vector<Gpu> gpus_;
  std::vector<Apart> apart_;       // few
  std::vector<Suspect> suspects_;  // in the order in which they came; mostly none
  Setup setup_;
  std::string name_;  // of the policy
  MakeDecider make_;
  std::unique_ptr<Decider> policy_;
  Time base_ = 0, timer_ = kForever, look_at_ = 0;
  Heard heard_;
  std::vector<Recovery> recoveries_;  // mostly none
  std::vector<Waiting> parts_;        // by slot
  std::vector<std::size_t> free_;
  bool is_numbered_ = false;
  IdMap slots_;  // by number, where the policy knows parts by theirs
  std::vector<std::int64_t> retried_;
  std::int64_t waiting_ = 0, next_number_ = 0, tag_ = 0, policy_errors_ = 0, audit_ = 0;
  std::string last_policy_error_;
  double profiled_share_ = 0;
  Draws draws_;
};

}  // namespace astrarium::front
