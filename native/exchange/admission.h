// Which calls are let in: decided by the threads that read them, from numbers that the scheduler publishes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/ring.h"
#include "exchange/call_cost.h"
#include "exchange/open_weights.h"
#include "policies/contract.h"

namespace astrarium::front {

enum class Verdict {
  kTaken,
  kClosed,   // the server takes no calls now
  kTooLate,  // not even an idle GPU would be in time
  kFull,     // as many calls are open as may be
  kAway,     // no worker is up, and none will be in time
  kBacklog,  // as many calls of this model are open as can be answered in time
  kBehind,   // the path has more than it can carry: the call has waited too long, or would
  kTexts,    // more texts wait for tokens than can have them in time
};

// How much of a model can be open and still be in time. By Little's law a call waits for as long as it takes to answer
// what is open ahead of it, at the rate at which the model's calls are answered; a call for which that is longer than
// its objective is refused. Clients who wait for their answers before they send again, and have them in time, are
// never refused: so many are open as are answered within that time, and no more.
//
// The rate is the profile's, until what was let in is lost (dropped, or late), or calls are refused, while the GPUs
// have always had more than they can run: then it is that of the answers that came in time. Threads that read calls
// ask, and the scheduler tells what became of calls.
class OpenCallLimit {
 public:
  static constexpr Time kStretch = 100 * kMillisecond;  // over which a rate is measured, if that is some batches
  static constexpr int kBatches = 8;
  static constexpr double kShare = 0.9;  // of the objective; the rest is for handing a batch out, and for its answers
  static constexpr double kLeast = 0.5;  // of a rate: one stretch says no worse of it, so a stall is no new rate
  static constexpr double kRecovery =
      1.5;  // by which a rate is trusted again after a stretch in which nothing was lost

  void plan(const Model& model, int gpus, Time now) {
    const int batch = std::max(1, std::min(model.largest_batch_within(model.slo / 2), model.max_batch()));
    promised_ = gpus * best_rate(model);
    stretch_ = std::max(kStretch, std::min(kBatches * model.latency[static_cast<std::size_t>(batch)], kLongest));
    busy_.store(kPlainCall * batch * gpus, std::memory_order_relaxed);
    rate_.store(promised_, std::memory_order_relaxed);
    begin(now);
    always_busy_.store(false, std::memory_order_relaxed);
  }

  // By any thread: whether a call cannot be in time behind what is open *ahead* of it.
  bool too_many(Weight open, Weight ahead, Time objective) {
    note(open);
    const double in_time = rate_.load(std::memory_order_relaxed) * kShare * static_cast<double>(objective);
    if (static_cast<double>(ahead) <= in_time) return false;
    if (!refused_.load(std::memory_order_relaxed)) refused_.store(true, std::memory_order_relaxed);
    return true;
  }

  // By the scheduler: a call was answered in time, or was not.
  void answered(Time at, Weight weight = kPlainCall) {
    answered_ += weight;
    last_answer_ = std::max(last_answer_, at);
  }
  void lost() { lost_ = true; }

  void look(Time now, Weight open) {
    note(open);
    if (now - looked_ < stretch_) return;
    rate_.store(next_rate(rate_.load(std::memory_order_relaxed)), std::memory_order_relaxed);
    begin(now);
  }

 private:
  static constexpr Time kLongest = 10'000 * kMillisecond;  // of stretches

  // The most requests that GPUs can answer in a nanosecond, in batches that are done in time; no limit where times
  // vary.
  static double best_rate(const Model& model) {
    double best = 0;
    for (int size = 1; size <= model.max_batch(); ++size) {
      const double time = static_cast<double>(model.latency[static_cast<std::size_t>(size)]);
      if (time <= 0 || model.dynamic) return kNoLimit;
      if (size == 1 || time <= static_cast<double>(model.slo)) best = std::max(best, kPlainCall * size / time);
    }
    return best;
  }

  // What was reached can be reached; less is what GPUs can do only if they always had something to do.
  double next_rate(double rate) const {
    const bool refused = refused_.load(std::memory_order_relaxed);
    if ((lost_ || refused) && always_busy_.load(std::memory_order_relaxed)) return std::max(kLeast * rate, measured());
    return std::max({rate, std::min(promised_, kRecovery * rate), refused ? measured() : 0});
  }

  void note(Weight open) {
    if (open <= busy_.load(std::memory_order_relaxed) && always_busy_.load(std::memory_order_relaxed))
      always_busy_.store(false, std::memory_order_relaxed);
  }

  // From the end of one batch to the end of another, so that only whole batches count.
  double measured() const {
    const Time took = last_answer_ - began_;
    return took > 0 ? static_cast<double>(answered_) / static_cast<double>(took) : 0;
  }

  void begin(Time now) {
    began_ = answered_ > 0 ? last_answer_ : now;
    looked_ = now;
    answered_ = 0;
    lost_ = false;
    refused_.store(false, std::memory_order_relaxed);
    always_busy_.store(true, std::memory_order_relaxed);
  }

  static constexpr double kNoLimit = 1e9;

  double promised_ = kNoLimit;  // weight per nanosecond, as all rates
  Time stretch_ = kStretch, looked_ = 0, began_ = 0, last_answer_ = 0;
  Weight answered_ = 0;
  bool lost_ = false;
  std::atomic<double> rate_ = kNoLimit;
  std::atomic<Weight> busy_ = 0;  // with so much open, not every GPU may have its next batch waiting
  std::atomic<bool> always_busy_ = false, refused_ = false;
};

class Admission {
 public:
  Admission(std::size_t models, std::int64_t most_open) : models_(models), most_open_(most_open) {}

  // By any thread: what would become of a call now, behind so many *before* it that cost the same.
  Verdict judge(int model, const CallCost& cost, Time objective, Time received, Time now, std::int64_t before = 0) {
    if (closed_.load(std::memory_order_relaxed)) return Verdict::kClosed;
    ModelAdmission& of_model = at(model);
    if (now + cost.needed > received + objective) return Verdict::kTooLate;
    if (back_at() + cost.needed > received + objective) return Verdict::kAway;
    if (open_.load(std::memory_order_relaxed) + before >= most_open_) return Verdict::kFull;
    const Time left = std::min(objective, received + objective - now);
    const Weight ahead = of_model.weights.ahead_of(objective) + before * cost.weight;
    if (of_model.limit.too_many(of_model.weights.total(), ahead, left)) return Verdict::kBacklog;
    return Verdict::kTaken;
  }
  // A call that is taken counts as open until `ended`, which must hear the same weight and objective.
  Verdict admit(int model, const CallCost& cost, Time objective, Time received, Time now) {
    const Verdict verdict = judge(model, cost, objective, received, now);
    if (verdict == Verdict::kTaken) let_in(model, cost, objective);
    return verdict;
  }
  void let_in(int model, const CallCost& cost, Time objective, std::int64_t calls = 1) {
    count(model, calls, calls * cost.weight, objective);
  }
  // What a call of so many rows of this length costs; 0: the length is not known.
  CallCost cost(int model, std::int64_t length = 0, int rows = 1) const {
    CallCost cost = models_[static_cast<std::size_t>(model)].costs.of(length);
    cost.weight *= rows;
    return cost;
  }
  // An open call weighs something else, now that its length is known.
  void reweigh(int model, Weight before, Weight weight, Time objective) { count(model, 0, weight - before, objective); }
  void ended(int model, Weight weight, Time objective) { count(model, -1, -weight, objective); }
  std::int64_t open(int model) const {
    return models_[static_cast<std::size_t>(model)].open.load(std::memory_order_relaxed);
  }
  std::int64_t open() const { return open_.load(std::memory_order_relaxed); }

  // When a worker can be expected, while none is up; 0 where one is.
  void expect_worker(Time at) { back_at_.store(at, std::memory_order_relaxed); }
  Time back_at() const { return back_at_.load(std::memory_order_relaxed); }

  // How much later than planned answers of a model have lately been: nine times what each punctual answer narrows the
  // margin, each late one widens it. Racing threads may lose a step.
  void answered(int model, Time slip) {
    ModelAdmission& of_model = at(model);
    const Time margin = of_model.margin.load(std::memory_order_relaxed);
    const Time moved = margin + (slip > margin ? kWider : -kNarrower);
    of_model.margin.store(std::clamp<Time>(moved, 0, of_model.widest.load(std::memory_order_relaxed)),
                          std::memory_order_relaxed);
  }
  Time margin(int model) const {
    return models_[static_cast<std::size_t>(model)].margin.load(std::memory_order_relaxed);
  }

  // By the scheduler.
  void plan(const Setup& setup, int gpus, Time now) {
    for (std::size_t model = 0; model < models_.size(); ++model) {
      const Model& known = setup.models[model];
      ModelAdmission& of_model = models_[model];
      of_model.widest.store(static_cast<Time>(kWidest * static_cast<double>(known.slo)), std::memory_order_relaxed);
      of_model.costs.plan(known, setup.network.delay(1) + setup.network.response);
      of_model.limit.plan(known, std::max(1, gpus), now);  // without a worker, as if the one that is expected were here
    }
  }
  void look(Time now) {
    for (ModelAdmission& of_model : models_) of_model.limit.look(now, of_model.weights.total());
  }
  void close(bool closed) { closed_.store(closed, std::memory_order_relaxed); }
  OpenCallLimit& limit(int model) { return at(model).limit; }

 private:
  static constexpr Time kWider = 90'000, kNarrower = 10'000;  // nanoseconds
  // Of an objective: with less than the rest of it, hardly a batch could be planned.
  static constexpr double kWidest = 0.4;

  struct alignas(kCacheLine) ModelAdmission {
    std::atomic<std::int64_t> open = 0;
    OpenWeights weights;
    std::atomic<Time> margin = 0, widest = 0;
    CallCosts costs;
    OpenCallLimit limit;
  };
  void count(int model, std::int64_t calls, Weight weight, Time objective) {
    at(model).open.fetch_add(calls, std::memory_order_relaxed);
    at(model).weights.add(weight, objective);
    open_.fetch_add(calls, std::memory_order_relaxed);
  }
  ModelAdmission& at(int model) { return models_[static_cast<std::size_t>(model)]; }

  std::vector<ModelAdmission> models_;
  std::int64_t most_open_;
  std::atomic<std::int64_t> open_ = 0;
  std::atomic<bool> closed_ = true;
  std::atomic<Time> back_at_ = 0;
};

}  // namespace astrarium::front
