// Which calls are let in: decided by the threads that read them, from numbers that the scheduler publishes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/ring.h"
#include "policies/contract.h"

namespace astrarium::front {

enum class Verdict {
  kTaken,
  kClosed,   // the server takes no calls now
  kTooLate,  // not even an idle GPU would be in time
  kFull,     // as many calls are open as may be
  kAway,     // no worker is up, and none will be in time
  kBacklog,  // as many calls of this model are open as can be answered in time
};

// How many calls of a model can be open and still be in time. It follows the rate at which the model's calls are
// answered: by its profile, or, where calls have queued up through all of the last stretch, as they really were, of
// which calls may queue for a share of the objective: a longer queue answers nobody more, only later. Threads that read
// calls ask, and the scheduler counts answers.
class OpenCallLimit {
 public:
  static constexpr Time kStretch = 100 * kMillisecond;  // long enough for some batches to end
  static constexpr double kShare = 0.5;                 // of the objective
  // By which a limit is forgotten after each stretch in which calls did not queue up.
  static constexpr double kRecovery = 1.5;

  void plan(const Model& model, int gpus, Time now) {
    const double best = best_time(model);
    promised_ = best > 0 ? gpus / best : 1e9;
    queued_.store(std::int64_t{2} * model.max_batch() * gpus, std::memory_order_relaxed);
    rate_.store(promised_, std::memory_order_relaxed);
    began_ = now;
    answers_ = 0;
    always_queued_.store(false, std::memory_order_relaxed);
  }

  // By any thread.
  bool too_many(std::int64_t open, Time objective) {
    if (open <= queued_.load(std::memory_order_relaxed) && always_queued_.load(std::memory_order_relaxed))
      always_queued_.store(false, std::memory_order_relaxed);
    return static_cast<double>(open) > rate_.load(std::memory_order_relaxed) * static_cast<double>(objective);
  }

  // By the scheduler.
  void answered() { ++answers_; }
  void look(Time now, std::int64_t open) {
    if (open <= queued_.load(std::memory_order_relaxed)) always_queued_.store(false, std::memory_order_relaxed);
    if (now - began_ < kStretch) return;
    const double rate = rate_.load(std::memory_order_relaxed);
    const double measured = static_cast<double>(answers_) / static_cast<double>(now - began_);
    const bool queued = always_queued_.load(std::memory_order_relaxed);
    rate_.store(std::min(promised_, queued ? kShare * measured : kRecovery * rate), std::memory_order_relaxed);
    began_ = now;
    answers_ = 0;
    always_queued_.store(true, std::memory_order_relaxed);
  }

 private:
  // The least GPU time of a request: its share of the best batch; 0 where times vary.
  static double best_time(const Model& model) {
    if (model.dynamic) return 0;
    double best = static_cast<double>(model.latency[1]);
    for (int size = 2; size <= model.max_batch(); ++size)
      best = std::min(best, static_cast<double>(model.latency[static_cast<std::size_t>(size)]) / size);
    return best;
  }

  double promised_ = 1e9;  // answers per nanosecond
  Time began_ = 0;
  std::int64_t answers_ = 0;
  std::atomic<double> rate_ = 1e9;
  std::atomic<std::int64_t> queued_ = 0;  // so many open calls keep every GPU busy
  std::atomic<bool> always_queued_ = false;
};

class Admission {
 public:
  Admission(std::size_t models, std::int64_t most_open) : gates_(models), most_open_(most_open) {}

  // By any thread: what would become of a call now.
  Verdict judge(int model, Time objective, Time received, Time now) {
    if (closed_.load(std::memory_order_relaxed)) return Verdict::kClosed;
    Gate& gate = at(model);
    const Time needed = gate.needed.load(std::memory_order_relaxed);
    if (now + needed > received + objective) return Verdict::kTooLate;
    if (back_at() + needed > received + objective) return Verdict::kAway;
    if (open_.load(std::memory_order_relaxed) >= most_open_) return Verdict::kFull;
    if (gate.limit.too_many(gate.open.load(std::memory_order_relaxed), objective)) return Verdict::kBacklog;
    return Verdict::kTaken;
  }
  // A call that is taken counts as open until `ended`.
  Verdict admit(int model, Time objective, Time received, Time now) {
    const Verdict verdict = judge(model, objective, received, now);
    if (verdict != Verdict::kTaken) return verdict;
    at(model).open.fetch_add(1, std::memory_order_relaxed);
    open_.fetch_add(1, std::memory_order_relaxed);
    return verdict;
  }
  void ended(int model) {
    at(model).open.fetch_sub(1, std::memory_order_relaxed);
    open_.fetch_sub(1, std::memory_order_relaxed);
  }
  std::int64_t open(int model) const {
    return gates_[static_cast<std::size_t>(model)].open.load(std::memory_order_relaxed);
  }
  std::int64_t open() const { return open_.load(std::memory_order_relaxed); }
  // What a lone request needs, from the decision on it to its answer.
  Time needed(int model) const {
    return gates_[static_cast<std::size_t>(model)].needed.load(std::memory_order_relaxed);
  }
  // The same from *now* on, when perhaps no worker is up.
  Time needed(int model, Time now) const { return needed(model) + std::max<Time>(0, back_at() - now); }

  // When a worker can be expected, while none is up; 0 where one is.
  void expect_worker(Time at) { back_at_.store(at, std::memory_order_relaxed); }
  Time back_at() const { return back_at_.load(std::memory_order_relaxed); }

  // How much later than planned answers of a model have lately been: nine times what each punctual answer narrows the
  // margin, each late one widens it. Racing threads may lose a step.
  void answered(int model, Time slip) {
    Gate& gate = at(model);
    const Time margin = gate.margin.load(std::memory_order_relaxed);
    const Time moved = margin + (slip > margin ? kWider : -kNarrower);
    gate.margin.store(std::clamp<Time>(moved, 0, gate.widest.load(std::memory_order_relaxed)),
                      std::memory_order_relaxed);
  }
  Time margin(int model) const {
    return gates_[static_cast<std::size_t>(model)].margin.load(std::memory_order_relaxed);
  }

  // By the scheduler.
  void plan(const Setup& setup, int gpus, Time now) {
    for (std::size_t model = 0; model < gates_.size(); ++model) {
      const Model& known = setup.models[model];
      Gate& gate = gates_[model];
      gate.needed.store(known.latency[1] + setup.network.delay(1) + setup.network.response, std::memory_order_relaxed);
      gate.widest.store(static_cast<Time>(kWidest * static_cast<double>(known.slo)), std::memory_order_relaxed);
      gate.limit.plan(known, std::max(1, gpus), now);  // without a worker, as if the one that is expected were here
    }
  }
  void look(Time now) {
    for (Gate& gate : gates_) gate.limit.look(now, gate.open.load(std::memory_order_relaxed));
  }
  void close(bool closed) { closed_.store(closed, std::memory_order_relaxed); }
  OpenCallLimit& limit(int model) { return at(model).limit; }

 private:
  static constexpr Time kWider = 90'000, kNarrower = 10'000;  // nanoseconds
  // Of an objective: with less than the rest of it, hardly a batch could be planned.
  static constexpr double kWidest = 0.4;

  struct alignas(kCacheLine) Gate {
    std::atomic<std::int64_t> open = 0;
    std::atomic<Time> needed = 0, margin = 0, widest = 0;
    OpenCallLimit limit;
  };
  Gate& at(int model) { return gates_[static_cast<std::size_t>(model)]; }

  std::vector<Gate> gates_;
  std::int64_t most_open_;
  std::atomic<std::int64_t> open_ = 0;
  std::atomic<bool> closed_ = true;
  std::atomic<Time> back_at_ = 0;
};

}  // namespace astrarium::front
