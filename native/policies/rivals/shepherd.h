// Twin of astrarium.serving.policies.shepherd. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <vector>

#include "policies/entries.h"
#include "policies/min_tree.h"
#include "policies/policy.h"

namespace astrarium {

class Shepherd : public Policy {
 public:
  Shepherd(const Setup& setup, double preemption, bool preempt, bool purge_tail)
      : network_(setup.network),
        preemption_cost_(setup.preemption_cost),
        preemption_(preemption),
        preempt_(preempt),
        purge_tail_(purge_tail),
        queues_(setup.models.size()),
        waiting_(setup.models.size()),
        arrived_(setup.models.size()),
        idle_(static_cast<std::size_t>(setup.gpus), 0),
        running_(static_cast<std::size_t>(setup.gpus)) {
    for (const Model& model : setup.models) {
      costs_.push_back(batch_costs(model, network_));
      stalled_costs_.push_back(batch_costs(model, network_, preemption_cost_));
    }
  }

  void decide(const Instant& instant, Books& books) override {
    arrivals_ = &instant.arrivals;
    for (std::int64_t id = instant.first; id < instant.last; ++id) {
      enqueue(id);
      arrived_.add(model_of(id));
    }
    for (const Event& event : instant.events)
      if (const auto gpu = gpu_of(event)) see_gpu(*gpu, books);
    serve_idle(instant.now, books);
    if (preempt_) challenge(instant.now, books);
    arrived_.clear();
    if (purge_tail_ && idle_.least() == 0) await_tails(instant.now, books);
  }

 private:
  static constexpr Time kSafe = kForever;  // the size of a batch that nothing can replace

  struct Running {
    Time size = kSafe;
    int model = -1;
    Time due = kForever;
    Time sent = -1;
  };

  struct Pick {
    int model = -1;
    int size = 0;
    Time due = kForever;
  };

  int model_of(std::int64_t id) const { return arrivals_->model[id]; }
  Time due_of(std::int64_t id) const { return arrivals_->deadline[id] - network_.response; }
  EntryQueue& queue(int model) { return queues_[static_cast<std::size_t>(model)]; }
  Running& running(int gpu) { return running_[static_cast<std::size_t>(gpu)]; }
  Time alone(int model) const { return costs_[static_cast<std::size_t>(model)][1]; }

  void enqueue(std::int64_t id) {
    queue(model_of(id)).insert(due_of(id), id);
    waiting_.add(model_of(id));
  }

  void see_gpu(int gpu, const Books& books) {
    const Gpu& seen = books.gpu(gpu);
    idle_.set(gpu, seen.idle() ? 0 : kForever);
    running(gpu).size = kSafe;
    if (!seen.batches.empty() && seen.recovering < 0) note(gpu, seen.batches.front().requests);
  }

  void note(int gpu, const std::vector<std::int64_t>& batch) {
    Time due = kForever;
    for (const std::int64_t id : batch) due = std::min(due, due_of(id));
    running(gpu) = {static_cast<Time>(batch.size()), model_of(batch[0]), due, running(gpu).sent};
  }

  void serve_idle(Time now, Books& books) {
    for (int gpu = 0; !waiting_.empty() && (gpu = idle_.first_at_most(0)) >= 0;) {
      Pick best;
      for (const int model : waiting_.members()) {
        purge(now, model, books);
        best = larger(now, best, model);
      }
      if (best.size) {
        batch_.clear();
        take(best.model, best.size);
        send(now, gpu, 0, books);
      }
      waiting_.keep([this](int model) { return !queue(model).empty(); });
      if (!best.size) return;  // whoever still waits is blocked by its head
    }
  }

  void purge(Time now, int model, Books& books) {
    EntryQueue& q = queue(model);
    const Time saved = now + alone(model);
    if (purge_tail_ && !q.empty() && q.due(q.size() - 1) >= saved) return;
    q.drop(now, q.due_before(saved), saved, books);
  }

  void await_tails(Time now, Books& books) {
    Time lost = kForever;
    for (const int model : waiting_.members())
      if (!queue(model).empty()) lost = std::min(lost, queue(model).due(queue(model).size() - 1) - alone(model) + 1);
    if (lost < kForever) books.set_timer(now, lost);
  }

  // Ties go to the earlier head, so the order in which models are compared does not matter.
  Pick larger(Time now, const Pick& best, int other) {
    const EntryQueue& q = queue(other);
    if (q.empty()) return best;
    const int fits = largest_within(costs_[static_cast<std::size_t>(other)], q.due() - now);
    const int size = std::min(q.size(), fits);
    const bool tie = size == best.size && size > 0 && q.head() < queue(best.model).head();
    return size > best.size || tie ? Pick{other, size, q.due()} : best;
  }

  void take(int model, int size) {
    batch_.insert(batch_.end(), queue(model).ids(), queue(model).ids() + size);
    queue(model).cut(size);
  }

  void send(Time now, int gpu, Time stall, Books& books) {
    idle_.set(gpu, kForever);
    note(gpu, batch_);
    running(gpu).sent = now;
    const int size = static_cast<int>(batch_.size());
    books.dispatch(now, gpu, batch_.data(), size, now + std::max(network_.delay(size), stall));
  }

  void challenge(Time now, Books& books) {
    std::vector<int>& todo = todo_;
    todo = arrived_.members();
    for (std::size_t next = 0; next < todo.size(); ++next) {
      const int model = todo[next];
      for (int gpu = next_rival(now, model, 0); gpu >= 0; gpu = next_rival(now, model, gpu + 1)) {
        const int cancelled = running(gpu).model;
        const Pick pick = challenger(now, gpu, model, books);
        if (pick.size < preemption_ * static_cast<double>(running(gpu).size)) continue;
        replace(now, gpu, pick, books);
        if (cancelled != model) todo.push_back(cancelled);
      }
    }
  }

  int next_rival(Time now, int model, int first) const {
    const double waiting = queues_[static_cast<std::size_t>(model)].size();
    const double apart = waiting / preemption_, joined = waiting / (preemption_ - 1);
    const int gpus = joined >= 1 ? static_cast<int>(running_.size()) : 0;
    for (int gpu = first; gpu < gpus; ++gpu) {
      const Running& rival = running_[static_cast<std::size_t>(gpu)];
      const double size = static_cast<double>(rival.size);
      if (size <= joined && (size <= apart || rival.model == model) && rival.sent < now) return gpu;
    }
    return -1;
  }

  Pick challenger(Time now, int gpu, int model, Books& books) {
    const int own = running(gpu).model;
    const Pick best = candidate(now, gpu, model, Pick{}, books);
    return own == model ? best : candidate(now, gpu, own, best, books);
  }

  Pick candidate(Time now, int gpu, int model, const Pick& best, Books& books) {
    purge(now, model, books);
    const EntryQueue& q = queue(model);
    const bool own = model == running(gpu).model;
    const Time due = std::min(q.empty() ? kForever : q.due(), own ? running(gpu).due : kForever);
    const int most = q.size() + (own ? static_cast<int>(running(gpu).size) : 0);
    const int fits = largest_within(stalled_costs_[static_cast<std::size_t>(model)], due - now);
    const int size = std::min(most, fits);
    return size > best.size || (size == best.size && due < best.due) ? Pick{model, size, due} : best;
  }

  void replace(Time now, int gpu, const Pick& pick, Books& books) {
    const int cancelled_model = running(gpu).model;
    const std::vector<std::int64_t> cancelled = books.preempt(now, gpu);
    batch_.clear();
    if (pick.model == cancelled_model) batch_ = cancelled;
    take(pick.model, pick.size - static_cast<int>(batch_.size()));
    if (pick.model != cancelled_model)
      for (const std::int64_t id : cancelled) enqueue(id);
    send(now, gpu, preemption_cost_, books);
    running(gpu).size = kSafe;  // until it has recovered
  }

  Network network_;
  Time preemption_cost_;
  double preemption_;
  bool preempt_, purge_tail_;
  std::vector<EntryQueue> queues_;
  IndexSet waiting_, arrived_;
  std::vector<std::vector<Time>> costs_, stalled_costs_;
  MinTree idle_;
  std::vector<Running> running_;
  const Arrivals* arrivals_ = nullptr;
  std::vector<std::int64_t> batch_;  // the one about to be sent
  std::vector<int> todo_;
};

inline std::unique_ptr<Policy> make_shepherd(const Setup& setup, const Parameters& p) {
  return std::make_unique<Shepherd>(setup, p.reals.at("preemption"), p.integers.at("preempt") != 0,
                                    p.integers.at("purge_tail") != 0);
}

}  // namespace astrarium
