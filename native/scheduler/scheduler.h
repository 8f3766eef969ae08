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
// A policy may cancel the batch that runs on a GPU. Its rows wait again at once, and may run in other batches, while
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
#include "common/rounded_duration.h"
#include "exchange/admission.h"
#include "exchange/ticket.h"
#include "policies/live_policy.h"
#include "scheduler/batch_books.h"
#include "scheduler/blame.h"
#include "scheduler/gpu_table.h"
#include "scheduler/order.h"
#include "scheduler/quarantine.h"
#include "scheduler/suspects.h"
#include "scheduler/ticket_ends.h"
#include "scheduler/waiting_rows.h"

namespace astrarium::front {

struct Order {
  int worker;
  std::string packet;
};

class Scheduler {
 public:
  // *memory* is where tickets have their inputs.
  Scheduler(int gpus, Admission& admission, const char* memory)
      : quarantine(memory), admission_(admission), ends_(admission, ended), suspects_(quarantine, ends_), gpus_(gpus) {}

  // What it consists of hold to its own members.
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Tell policies that listen what this share of the requests would have taken alone.
  void profile(double share, std::uint64_t seed) {
    profiled_share_ = share;
    draws_ = Draws(seed);
  }

  // A fresh policy decides from now on; a setup that none can be made for changes nothing.
  void begin(Setup setup, std::string name, MakeDecider make, Time now) {
    auto policy = make(setup);
    setup_ = std::move(setup);
    name_ = std::move(name);
    make_ = std::move(make);
    policy_ = std::move(policy);
    base_ = now;
    timer_ = kForever;
    happenings_.clear();
    recoveries_.clear();
    waiting_.identify_by_number(policy_->is_python());
    for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
      for (Batch& batch : gpus_[gpu].batches) batch.ours = false;
      gpus_[gpu].away = !gpus_[gpu].present || !gpus_[gpu].batches.empty();
      if (gpus_[gpu].away) happenings_.add(GpuLeft{gpu});
    }
    for (const std::size_t slot : waiting_.slots()) tell_of(slot);
    admission_.plan(setup_, gpus_.present(), now);
  }

  // A worker has its models, and can run batches.
  void worker_joined(int worker, Time now) {
    if (!gpus_.is_shared(worker)) return join_apart(worker, now);
    gpus_[worker].present = true;
    if (!policy_) return;
    wait_again(worker, now);
    let_join(worker, now);
    admission_.plan(setup_, gpus_.present(), now);
  }

  // A worker is gone, and nobody will write for its batches any more.
  Blame worker_left(int worker, const Loss& loss, Time now) {
    std::vector<Batch> lost = gpus_.is_shared(worker) ? lose_shared(worker) : lose_apart(worker, now);
    if (!policy_) return {};
    const Blame blame = judge(lost, loss, worker, now);
    admission_.plan(setup_, gpus_.present(), now);
    return blame;
  }

  // A model has workers of its own from now on, one on each GPU; without any it is back with the others, and what
  // waited for its worker goes back to the policy. Nothing of it may be with its own workers then.
  void set_apart(int model, const std::vector<int>& workers, Time now) {
    gpus_.set_apart(model, workers);
    for (int gpu = 0; workers.empty() && gpu < gpus_.count(); ++gpu) wait_again(gpu, now);
  }

  void arrive(Ticket* ticket, Time now) {
    ticket->open_rows = ticket->rows;
    if (const QuarantinedInput* held = quarantine.find(*ticket, now)) return refuse(ticket, *held, now);
    for (int index = 0; index < ticket->rows; ++index) wait({ticket, index}, now);
  }

  // Takes in a worker's message; false where it is not about a batch, and is for others.
  bool hear(int worker, std::string_view packet, Time now) {
    if (auto done = protocol::NewsScan(packet).batch_done()) {
      believe(*done, now);
      finish_batch(worker, *done, now);
      return true;
    }
    if (const auto broken = protocol::NewsScan(packet).batch_broken()) return fail_batch(worker, *broken, now), true;
    if (const auto stopped = protocol::NewsScan(packet).batch_cancelled())
      return confirm_cancel(worker, *stopped, now), true;
    return false;
  }

  // Decide on all that has happened; returns when to be asked again at the latest.
  Time step(Time now) {
    if (!policy_) return kForever;
    look(now);
    if (!suspects_.empty()) suspects_.give_up_late(now);
    if (!recoveries_.empty()) recover(now);
    if (happenings_.empty() && now < timer_) return next();
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
    for (const std::size_t slot : waiting_.slots()) end(waiting_.take(slot), Outcome::kDropped, Cause::kUnserved, "");
    suspects_.close();
    for (Gpu& gpu : gpus_)
      for (const Batch& batch : std::exchange(gpu.batches, {})) {
        if (batch.cancelled) ends_.let_go(batch);
        else
          for (const Row& row : batch.rows)
            end(row, Outcome::kFailed, Cause::kModelError, "the server stopped before the batch ended");
      }
  }

  // What comes of all this; whoever drives the scheduler takes it away after each call.
  std::vector<Order> orders;
  std::vector<Ticket*> ended;
  BatchBooks books;
  Quarantine quarantine;

  std::int64_t waiting() const { return waiting_.count(); }
  std::int64_t retried(int model) const {
    return static_cast<std::size_t>(model) < retried_.size() ? retried_[static_cast<std::size_t>(model)] : 0;
  }
  // What the policy needs to decide now; nothing where there is nothing to decide.
  std::shared_ptr<void> enter(Time now) { return happenings_.empty() && now < timer_ ? nullptr : policy_->enter(); }
  // Whether deciding takes the time that Python takes.
  bool asks_python() const { return policy_ && policy_->is_python(); }
  std::int64_t policy_errors() const { return policy_errors_; }
  const std::string& last_policy_error() const { return last_policy_error_; }

  // How many tickets are here, counted where they lie: each that has arrived, until it is taken away from `ended`.
  std::int64_t held() {
    ++audit_;
    std::int64_t held_tickets = std::ssize(ended);
    const auto see = [&](const Row& row) { held_tickets += std::exchange(row.ticket->seen, audit_) != audit_; };
    for (const std::size_t slot : waiting_.slots()) see(waiting_.at(slot).row);
    suspects_.for_each(see);
    for (const Gpu& gpu : gpus_)
      for (const Batch& batch : gpu.batches) std::for_each(batch.rows.begin(), batch.rows.end(), see);
    return held_tickets;
  }

  // Whether no batch is under way.
  bool at_rest() const { return gpus_.at_rest(); }

  // The oldest batch of a worker, and how long it may take.
  std::optional<std::pair<std::int64_t, Time>> oldest(int worker) const {
    const int gpu = gpus_.gpu_of(worker);
    if (gpu < 0) return std::nullopt;
    const auto& batches = gpus_[gpu].batches;
    if (batches.empty() || batches.front().worker != worker || !batches.front().sent) return std::nullopt;
    return std::pair(batches.front().tag, batches.front().limit);
  }

 private:
  static constexpr Time kShortestLimit = 1'000 * kMillisecond;  // before a worker is taken for stuck
  // The same of a model's own one: it holds up the others of its GPU.
  static constexpr Time kShortestApart = 200 * kMillisecond;
  static constexpr int kStuckAfter = 10;                 // times its estimate
  static constexpr Time kLookEvery = 10 * kMillisecond;  // a tenth of what limits are judged over

  // A GPU whose batch was cancelled before it was sent: to the policy it recovers until then.
  struct Recovery {
    Time at, stopped;
    int gpu;
    std::int64_t run;
  };

  void join_apart(int worker, Time now) {
    OwnWorker* own_worker = gpus_.own_worker(worker);
    if (own_worker == nullptr) return;
    own_worker->present = true;
    if (!policy_) return;
    wait_again(worker, now);
    try_alone(worker, now);
  }

  // Its batches that have not ended; what another worker of the GPU runs meanwhile goes on, without the policy.
  std::vector<Batch> lose_shared(int gpu) {
    Gpu& lost = gpus_[gpu];
    lost.present = false;
    std::vector<Batch> left, goes_on;
    for (Batch& batch : std::exchange(lost.batches, {})) {
      const bool runs = batch.sent && batch.worker != gpu;
      batch.ours &= !runs;
      (runs ? goes_on : left).push_back(std::move(batch));
    }
    lost.batches = std::move(goes_on);
    if (policy_ && !std::exchange(lost.away, true)) happenings_.add(GpuLeft{gpu});
    return left;
  }

  // The policy hears that each of its batches has failed; its GPU stays.
  std::vector<Batch> lose_apart(int worker, Time now) {
    std::vector<Batch> lost;
    OwnWorker* own_worker = gpus_.own_worker(worker);
    if (own_worker == nullptr) return lost;
    own_worker->present = false;
    auto& batches = gpus_[own_worker->gpu].batches;
    while (!batches.empty() && batches.front().sent && batches.front().worker == worker)
      lost.push_back(gpus_.take_first(own_worker->gpu));
    for (const Batch& batch : lost) {  // in their order
      if (batch.cancelled) tell_end(batch, preemption(own_worker->gpu, batch, now, now));
      else tell_end(batch, BatchFailed{own_worker->gpu, batch.run, "the model's own worker is gone"});
    }
    if (policy_) go_on(own_worker->gpu, now);
    return lost;
  }

  // The batch that broke a worker is suspect; its others go back to the policy.
  Blame judge(const std::vector<Batch>& lost, const Loss& loss, int worker, Time now) {
    const Batch* guilty = guilty_of(lost, loss);
    for (const Batch& batch : lost)
      if (batch.cancelled) ends_.let_go(batch);  // its rows wait, or run elsewhere
      else if (&batch == guilty) suspect(batch, loss, now);
      else if (batch.is_solo()) suspects_.add(batch.rows[0], true, what_happened_to(worker, loss));
      else
        for (const Row& row : batch.rows) retry_row(row, worker, loss, now);
    return blame_for(lost, guilty);
  }

  // Its rows run alone once more; one that was alone will break any worker.
  void suspect(const Batch& batch, const Loss& loss, Time now) {
    const std::string what_happened = what_happened_to(batch.worker, loss);
    if (batch.rows.size() == 1) return convict(batch.rows[0], what_happened, now);
    for (const Row& row : batch.rows)
      suspects_.add(row, true,
                    what_happened + " while it ran a batch of " + std::to_string(batch.rows.size()) +
                        " calls, this one among them");
  }

  std::string what_happened_to(int worker, const Loss& loss) const {
    return "the worker of GPU " + std::to_string(gpus_.gpu_of(worker)) + " " + loss.reason;
  }

  void convict(const Row& row, const std::string& what_happened, Time now) {
    const std::string reason = what_happened + " while it ran this call alone";
    quarantine.add(*row.ticket, reason, now);
    end(row, Outcome::kFailed, Cause::kWorkerLost,
        reason + "; the same input is refused for " + rounded_duration(Quarantine::kLasts));
  }

  void refuse(Ticket* ticket, const QuarantinedInput& entry, Time now) {
    ticket->outcome = Outcome::kFailed;
    ticket->cause = Cause::kQuarantined;
    ticket->reason = entry.reason_at(now);
    ticket->open_rows = 0;
    ended.push_back(ticket);
  }

  // When to be asked again.
  Time next() const {
    Time soonest = happenings_.events.empty() ? timer_ : 0;  // a batch that could not be sent has failed at once
    for (const Recovery& recovery : recoveries_) soonest = std::min(soonest, recovery.at);
    return std::min(soonest, suspects_.soonest_end());
  }

  // Runs the next suspect of a worker alone; false where it has none.
  bool try_alone(int worker, Time now) {
    if (suspects_.empty() || !gpus_.is_present(worker)) return false;
    const auto row = suspects_.take_alone(now, [&](const Row& row) { return runs_on(row, worker); });
    if (!row) return false;
    count_retry(*row->ticket);
    launch(gpus_.gpu_of(worker), {*row}, false, now, -1, now);
    return true;
  }

  // What waited for this worker goes back to the policy.
  void wait_again(int worker, Time now) {
    const auto rows = suspects_.take_waiting([&](const Row& row) { return runs_on(row, worker); });
    for (const Row& row : rows) wait(row, now);
  }

  bool runs_on(const Row& row, int worker) const {
    return gpus_.worker_for(gpus_.gpu_of(worker), row.ticket->model) == worker;
  }

  // Follow the rates at which calls are answered.
  void look(Time now) {
    if (now < look_at_) return;
    look_at_ = now + kLookEvery;
    admission_.look(now);
  }

  void wait(Row row, Time now) {
    row.number = next_number_++;
    const std::size_t slot = keep(row, now);
    if (policy_) tell_of(slot);
  }

  // Returns its slot.
  std::size_t keep(const Row& row, Time now) { return waiting_.add(row, planned(*row.ticket, now)); }

  void tell_of(std::size_t slot) {
    const WaitingRow& waiting = waiting_.at(slot);
    const Ticket& ticket = *waiting.row.ticket;
    const auto& lengths = setup_.models[static_cast<std::size_t>(ticket.model)].lengths;
    const int bucket = lengths ? lengths->bucket_of(ticket.length) : 0;
    happenings_.arrivals.push_back({waiting_.id(slot), ticket.model, ticket.received - base_, waiting.deadline - base_,
                                    ticket.application, lengths ? ticket.length : 0, bucket});
  }

  // One that the policy knows by this id.
  Row leave(std::int64_t id) { return waiting_.take(waiting_.slot_of(id)); }

  // The deadline to plan with: by it a lone request can still be tried, if it can be at all.
  Time planned(const Ticket& ticket, Time now) const {
    const Time soonest = now + ticket.cost.needed;
    return std::max(ticket.deadline - admission_.margin(ticket.model), std::min(ticket.deadline, soonest));
  }

  void end(const Row& row, Outcome outcome, Cause cause, std::string_view reason) {
    ends_.end(row, outcome, cause, reason);
  }

  // A row that was with a lost worker, and not to blame.
  void retry_row(const Row& row, int worker, const Loss& loss, Time now) {
    Ticket& ticket = *row.ticket;
    const Time worker_from = std::max(now, admission_.back_at());
    if (worker_from + ticket.cost.needed <= ticket.deadline) {
      count_retry(ticket);
      return wait(row, now);
    }
    end(row, Outcome::kFailed, Cause::kWorkerLost,
        what_happened_to(worker, loss) + ", and it is too late to try again");
  }

  void count_retry(Ticket& ticket) {
    if (std::exchange(ticket.retried, true)) return;
    retried_.resize(std::max(retried_.size(), static_cast<std::size_t>(ticket.model) + 1));
    ++retried_[static_cast<std::size_t>(ticket.model)];
  }

  // The batch that a worker tells of: the first of its GPU.
  std::optional<Batch> take(int worker, std::int64_t tag) {
    const auto first = oldest(worker);
    if (!first || first->first != tag) return std::nullopt;
    return gpus_.take_first(gpus_.gpu_of(worker));
  }

  // Sends what can be sent: to one worker of a GPU at a time. A batch for a worker that is away has failed, and so has
  // an empty one; the policy hears of it when its turn has come.
  void advance(int gpu, Time now) {
    auto& batches = gpus_[gpu].batches;
    while (!batches.empty() && !batches.front().sent &&
           (batches.front().rows.empty() || !gpus_.is_present(batches.front().worker))) {
      const Batch batch = gpus_.take_first(gpu);
      if (!batch.rows.empty()) move_elsewhere(gpu, batch, now);
      const char* why = batch.rows.empty() ? "its inputs are refused" : "its model's own worker is away";
      leave_gpu(gpu, batch, BatchFailed{gpu, batch.run, why}, now);
    }
    for (Batch& batch : batches) {
      if (batch.worker != batches.front().worker || batch.rows.empty()) return;
      if (!std::exchange(batch.sent, true)) orders.push_back({batch.worker, std::move(batch.order)});
    }
  }

  // A batch whose worker is away goes to a GPU where its model has one, or waits.
  void move_elsewhere(int gpu, const Batch& batch, Time now) {
    for (int other = 0; other < gpus_.count(); ++other)
      if (gpus_.is_present(gpus_.worker_for(other, batch.model)) && !batch.is_solo())
        return launch(other, batch.rows, false, now, -1, now);
    for (const Row& row : batch.rows)
      suspects_.add(row, batch.is_solo(), "the worker of its model on GPU " + std::to_string(gpu) + " is away");
  }

  // Nothing that a worker tells of can have happened later than now.
  static void believe(protocol::BatchDone& done, Time now) {
    for (Time* time : {&done.received, &done.started, &done.computing, &done.computed, &done.finished})
      *time = std::clamp<Time>(*time, 0, now);
  }

  void finish_batch(int worker, const protocol::BatchDone& done, Time now) {
    auto batch = take(worker, done.tag);
    if (!batch) return;
    const int gpu = gpus_.gpu_of(worker);
    if (batch->cancelled) return end_cancelled(gpu, *batch, done.started, done.computed, done.finished, now);
    ends_.answer(gpu, *batch, done);
    const BatchRecord record{batch->tag,        gpu,
                             batch->model,      static_cast<int>(batch->rows.size()),
                             batch->dispatched, batch->planned_end,
                             done.received,     done.started,
                             done.computing,    done.computed,
                             done.finished,     batch->lengths};
    books.add(record);
    leave_gpu(gpu, *batch,
              BatchFinished{gpu, batch->run, done.started - base_, since_base(done.started + record.kept_gpu())}, now);
    if (batch->ours) report_own_times(*batch, done.own_times);
  }

  void report_own_times(const Batch& batch, const std::vector<std::int64_t>& own_times) {
    if (!policy_ || !policy_->listens_to_profiler() || !setup_.models[static_cast<std::size_t>(batch.model)].dynamic)
      return;
    for (std::size_t member = 0; member < std::min(own_times.size(), batch.rows.size()); ++member) {
      const Row& row = batch.rows[member];
      if (draws_.share() < profiled_share_)
        happenings_.add(RequestProfiled{batch.model, row.ticket->application,
                                        std::clamp<Time>(own_times[member], 0, kLongest), row.number});
    }
  }

  void fail_batch(int worker, const protocol::BatchBroken& broken, Time now) {
    auto batch = take(worker, broken.tag);
    if (!batch) return;
    if (batch->cancelled)
      return end_cancelled(gpus_.gpu_of(worker), *batch, broken.started, broken.finished, broken.finished, now);
    for (const Row& row : batch->rows) end(row, Outcome::kFailed, Cause::kModelError, broken.error);
    leave_gpu(gpus_.gpu_of(worker), *batch, BatchFailed{gpus_.gpu_of(worker), batch->run, broken.error}, now);
  }

  void confirm_cancel(int worker, const protocol::BatchCancelled& news, Time now) {
    const auto oldest_batch = oldest(worker);
    if (!oldest_batch || oldest_batch->first != news.tag || !gpus_[gpus_.gpu_of(worker)].batches.front().cancelled)
      return;
    const Time started = std::clamp<Time>(news.started, 0, now), ended = std::clamp<Time>(news.stopped, 0, now);
    end_cancelled(gpus_.gpu_of(worker), gpus_.take_first(gpus_.gpu_of(worker)), started, ended, ended, now);
  }

  // A cancelled batch is over; it may have ended before its worker heard that it was cancelled.
  void end_cancelled(int gpu, const Batch& batch, Time started, Time computed, Time ended, Time now) {
    ends_.let_go(batch);
    books.add_busy(gpu, ended, std::max<Time>(0, computed - std::max(started, batch.dispatched)));
    leave_gpu(gpu, batch, preemption(gpu, batch, started, ended), now);
  }

  // A batch has left its GPU: tell the policy, or, where it was no batch of its own, let the GPU join once it is idle.
  void leave_gpu(int gpu, const Batch& batch, Event event, Time now) {
    if (!policy_) return;
    tell_end(batch, std::move(event));
    if (!batch.ours && batch.worker != gpu) try_alone(batch.worker, now);
    go_on(gpu, now);
  }
  void tell_end(const Batch& batch, Event event) {
    if (policy_ && batch.ours) happenings_.add(std::move(event));
  }
  BatchPreempted preemption(int gpu, const Batch& batch, Time started, Time stopped) const {
    return {gpu, batch.run, started - base_, since_base(stopped)};
  }
  // A policy's time begins with it.
  Time since_base(Time moment) const { return std::max<Time>(0, moment - base_); }
  void go_on(int gpu, Time now) {
    advance(gpu, now);
    let_join(gpu, now);
  }

  // A worker that is back runs the suspects of its predecessor before the policy hears of it.
  void let_join(int gpu, Time now) {
    Gpu& joining = gpus_[gpu];
    if (!joining.away || !joining.present || !joining.batches.empty() || try_alone(gpu, now)) return;
    joining.away = false;
    happenings_.add(GpuJoined{gpu});
  }

  void decide(Time now) {
    const std::vector<Action> actions = policy_->decide(now - base_, happenings_);
    happenings_.clear();
    for (const Action& action : actions) std::visit([&](const auto& action) { carry_out(action, now); }, action);
  }

  void carry_out(const Drop& drop, Time) {
    end(leave(drop.request), Outcome::kDropped, cause_of(drop.reason), drop.why);
  }
  void carry_out(const SetTimer& timer, Time) { timer_ = timer.at >= kForever ? kForever : base_ + timer.at; }

  static Cause cause_of(Reason reason) {
    switch (reason) {
      case kExpired: return Cause::kExpired;
      case kSacrificed: return Cause::kSacrificed;
      case kUnserved: return Cause::kUnserved;
      default: return Cause::kOther;
    }
  }

  void carry_out(const Dispatch& dispatch, Time now) {
    for (const std::int64_t id : dispatch.requests) waiting_.slot_of(id);  // all of them, or none leaves
    std::vector<Row> rows;
    rows.reserve(dispatch.requests.size());
    for (const std::int64_t id : dispatch.requests) rows.push_back(leave(id));
    const int model = rows[0].ticket->model;
    if (quarantine.has_any(model)) end_held(rows, now);
    if (!rows.empty()) return launch(dispatch.gpu, std::move(rows), true, base_ + dispatch.start, dispatch.run, now);
    gpus_[dispatch.gpu].batches.push_back(
        {++tag_, model, dispatch.gpu, true, {}, now, now, kShortestLimit, dispatch.run, {}});
    advance(dispatch.gpu, now);
  }

  // The policy's batch on a GPU is cancelled: the policy knows that its rows wait again, and hears when the GPU has
  // recovered.
  void carry_out(const Preempt& preempt, Time now) {
    auto& batches = gpus_[preempt.gpu].batches;
    const auto cancelled_batch = std::find_if(batches.begin(), batches.end(), [&](const Batch& batch) {
      return batch.ours && batch.run == preempt.run && !batch.cancelled;
    });
    if (cancelled_batch != batches.end())
      for (const Row& row : cancelled_batch->rows) keep(row, now);
    if (cancelled_batch != batches.end() && cancelled_batch->sent) return stop(*cancelled_batch);
    if (cancelled_batch != batches.end()) batches.erase(cancelled_batch);
    recoveries_.push_back({now + setup_.preemption_cost, now, preempt.gpu, preempt.run});
    advance(preempt.gpu, now);
  }

  void stop(Batch& batch) {
    batch.cancelled = true;
    ends_.hold(batch);
    orders.push_back({batch.worker, cancel_batch(batch.tag, setup_.preemption_cost)});
  }

  void recover(Time now) {
    std::erase_if(recoveries_, [&](const Recovery& recovery) {
      const bool over = now >= recovery.at;
      if (over)
        happenings_.add(
            BatchPreempted{recovery.gpu, recovery.run, recovery.stopped - base_, since_base(recovery.stopped)});
      return over;
    });
  }

  // Ends rows whose inputs have broken a worker while they waited.
  void end_held(std::vector<Row>& rows, Time now) {
    std::erase_if(rows, [&](const Row& row) {
      const QuarantinedInput* entry = quarantine.find(*row.ticket, now);
      if (entry != nullptr) end(row, Outcome::kFailed, Cause::kQuarantined, entry->reason_at(now));
      return entry != nullptr;
    });
  }

  void launch(int gpu, std::vector<Row> rows, bool ours, Time at_earliest, std::int64_t run, Time now) {
    const int size = static_cast<int>(rows.size()), model = rows[0].ticket->model;
    const BatchLengths lengths = lengths_of(setup_.models[static_cast<std::size_t>(model)], rows);
    const Time estimate = lengths.estimate;
    const Time delay = setup_.network.delay(size), start = std::max(at_earliest, now + delay);
    // The delay is what the way may take; where it takes less, nobody waits for the rest of it.
    std::string order = run_batch(++tag_, model, rows, std::max<Time>(0, start - delay));
    const int worker = gpus_.worker_for(gpu, model);
    const Time limit = std::max(worker == gpu ? kShortestLimit : kShortestApart, kStuckAfter * estimate);
    gpus_[gpu].batches.push_back(
        {tag_, model, worker, ours, std::move(rows), now, start + estimate, limit, run, std::move(order), lengths});
    advance(gpu, now);
  }

  // What waits is lost with a policy that failed, and a fresh one takes over.
  void policy_failed(const std::string& error, Time now) {
    ++policy_errors_;
    last_policy_error_ = error;
    const std::string reason = "the policy " + name_ + " failed: " + error;
    for (const std::size_t slot : waiting_.slots())
      end(waiting_.take(slot), Outcome::kFailed, Cause::kPolicyError, reason);
    happenings_.clear();
    try {
      begin(setup_, name_, make_, now);
    } catch (const std::exception& again) {  // the one that failed stays
      last_policy_error_ = again.what();
    }
  }

  Admission& admission_;
  TicketEnds ends_;
  Suspects suspects_;
  GpuTable gpus_;
  Setup setup_;
  std::string name_;  // of the policy
  MakeDecider make_;
  std::unique_ptr<Decider> policy_;
  Time base_ = 0, timer_ = kForever, look_at_ = 0;
  Happenings happenings_;
  std::vector<Recovery> recoveries_;  // mostly none
  WaitingRows waiting_;
  std::vector<std::int64_t> retried_;
  std::int64_t next_number_ = 0, tag_ = 0, policy_errors_ = 0, audit_ = 0;
  std::string last_policy_error_;
  double profiled_share_ = 0;
  Draws draws_;
};

}  // namespace astrarium::front
