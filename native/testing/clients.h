// Clients in virtual time: some send again as soon as they have their answer (closed loops), others at a rate, whatever
// becomes of their calls. The admission, the scheduler and its policy are those that serve; GPUs are virtual.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "testing/virtual_gpus.h"

namespace astrarium::front {

// So many clients send in closed loops until then, and others so many calls a second, at random.
struct Phase {
  Time until;
  std::int64_t clients;
  double per_second;
};

// What became of the calls of a phase.
struct PhaseOutcome {
  std::int64_t in_time = 0, late = 0, dropped = 0, refused = 0;
};

// Models are called in turn; a client stays with one. Calls have *lengths*, one after the other.
class VirtualClients {
 public:
  // A call reaches the server *way* after its client sent it; batches take *slower* times what the setup says.
  VirtualClients(const Setup& setup, const std::string& name, MakeDecider make, Time way, double slower,
                 std::vector<int> lengths)
      : setup_(setup),
        way_(way),
        lengths_(std::move(lengths)),
        admission_(setup.models.size(), 1 << 30),
        scheduler_(setup.gpus, admission_, nullptr),
        gpus_(setup_, slower, kSeed) {
    for (int gpu = 0; gpu < setup.gpus; ++gpu) scheduler_.worker_joined(gpu, 0);
    scheduler_.begin(setup, name, std::move(make), 0);
    admission_.close(false);
  }

  std::vector<PhaseOutcome> run(const std::vector<Phase>& phases) {
    outcomes_.assign(phases.size(), {});
    for (phase_ = 0; phase_ < phases.size(); ++phase_) {
      begin(phases[phase_]);
      while (now_ < phases[phase_].until) go_on(phases[phase_]);
    }
    return outcomes_;
  }

 private:
  static constexpr std::uint64_t kSeed = 1;
  static constexpr Time kRetry = kMillisecond;  // until a client in a closed loop that was refused tries again
  static constexpr std::int64_t kNoClient = -1;

  struct Send {
    Time at;
    std::int64_t client;
    bool operator>(const Send& other) const { return std::pair(at, client) > std::pair(other.at, other.client); }
  };
  struct VirtualCall : Ticket {
    std::int64_t client = kNoClient;
    std::size_t phase = 0;
  };

  void begin(const Phase& phase) {
    for (; clients_ < phase.clients; ++clients_) sends_.push({now_ + way_, clients_});
    clients_ = phase.clients;  // who is one too many leaves with its next answer
    next_open_ = phase.per_second > 0 ? now_ + gap(phase) : kForever;
  }

  // What happens now; then it is as late as the next thing happens.
  void go_on(const Phase& phase) {
    for (; next_open_ <= now_; next_open_ += gap(phase)) send(kNoClient);
    for (; !sends_.empty() && sends_.top().at <= now_;) {
      const std::int64_t client = sends_.top().client;
      sends_.pop();
      send(client);
    }
    gpus_.tell(scheduler_, now_);
    const Time next = scheduler_.step(now_);
    gpus_.take(scheduler_, now_);
    for (Ticket* ended : std::exchange(scheduler_.ended, {})) end(static_cast<VirtualCall&>(*ended));
    const Time next_send = sends_.empty() ? kForever : sends_.top().at;
    now_ = std::min({std::max(next, now_ + 1), gpus_.next(), next_send, next_open_, phase.until});
  }

  Time gap(const Phase& phase) { return static_cast<Time>(1 - std::log(1 - draws_.share()) * 1e9 / phase.per_second); }

  void send(std::int64_t client) {
    const auto models = static_cast<std::int64_t>(setup_.models.size());
    const int model = static_cast<int>((client == kNoClient ? open_calls_++ : client) % models);
    const int length = lengths_.empty() ? 0 : lengths_[sent_++ % lengths_.size()];
    const CallCost cost = admission_.cost(model, length);
    const Time objective = setup_.models[static_cast<std::size_t>(model)].slo;
    if (admission_.admit(model, cost, objective, now_, now_) != Verdict::kTaken) {
      ++outcomes_[phase_].refused;
      return send_again(client, now_ + kRetry);
    }
    VirtualCall& call = spare();
    call.clear();
    call.model = model;
    call.length = length;
    call.block = static_cast<std::size_t>(length);
    call.cost = cost;
    call.client = client;
    call.phase = phase_;
    call.received = now_;
    call.deadline = now_ + objective;
    scheduler_.arrive(&call, now_);
  }

  void end(VirtualCall& call) {
    PhaseOutcome& outcome = outcomes_[call.phase];
    const bool answered = call.outcome == Outcome::kInTime;
    ++(!answered ? outcome.dropped : now_ > call.deadline ? outcome.late : outcome.in_time);
    if (answered) admission_.answered(call.model, now_ - call.planned_end);
    admission_.ended(call.model, call.cost.weight, call.objective());
    send_again(call.client, now_ + way_);
    unused_.push_back(&call);
  }

  void send_again(std::int64_t client, Time at) {
    if (client != kNoClient && client < clients_) sends_.push({at, client});
  }

  VirtualCall& spare() {
    if (unused_.empty()) unused_.push_back(calls_.emplace_back(std::make_unique<VirtualCall>()).get());
    VirtualCall& call = *unused_.back();
    unused_.pop_back();
    return call;
  }

  Setup setup_;
  Time way_;
  std::vector<int> lengths_;
  Admission admission_;
  Scheduler scheduler_;
  VirtualGpus gpus_;
  Draws draws_{kSeed};
  std::priority_queue<Send, std::vector<Send>, std::greater<>> sends_;
  std::vector<std::unique_ptr<VirtualCall>> calls_;
  std::vector<VirtualCall*> unused_;
  std::vector<PhaseOutcome> outcomes_;
  std::size_t phase_ = 0, sent_ = 0;
  std::int64_t clients_ = 0, open_calls_ = 0;
  Time now_ = 0, next_open_ = kForever;
};

}  // namespace astrarium::front
