// A fuzzer of what workers say, and of the scheduler that hears it: true words, changed words and any bytes, while a
// policy learns from them, or cancels batches, and workers die. Whatever comes, every ticket ends.
//
// native/fuzz/run.py builds and runs it.
#include <deque>
#include <random>
#include <string>
#include <string_view>

#include "policies/live_twins.h"
#include "testing/feed.h"

using namespace astrarium;
using namespace astrarium::front;

#include "drive.h"
#include "must.h"

namespace {

Setup make_setup() {
  Setup setup{{}, 2, {}, 0};
  Model model{100 * kMillisecond, {0}, Dynamic{kMillisecond, 0.5, {{}, std::vector<Time>(20, 3 * kMillisecond)}}};
  for (int size = 1; size <= 4; ++size) model.latency.push_back((1 + size) * kMillisecond);
  model.latency.push_back(kForever);
  setup.models = {model, {100 * kMillisecond, model.latency}};
  return setup;
}

Parameters make_parameters(bool orloj) {
  if (!orloj)
    return {"astrarium",
            {{"lookahead", 1}, {"few_gpus", 0}, {"lines", 0}, {"memory", 50 * kMillisecond}},
            {{"patience", -1.0}},
            {}};
  return {"orloj",
          {{"bins", 32}, {"window", 50 * kMillisecond}, {"refresh", 0}, {"own", 1}, {"latest", 0}},
          {{"rate", 1e-10}, {"farthest", 250.0}},
          {{"batch_sizes", {}}}};
}

// Stands for a policy in Python: small batches, of which every third instant cancels those that run.
class Cancelling final : public Decider {
 public:
  bool is_python() const override { return true; }
  bool listens_to_profiler() const override { return true; }

  std::vector<Action> decide(Time now, const Happenings& happenings) override {
    for (const Event& event : happenings.events) std::visit([this](const auto& event) { hear(event); }, event);
    for (const Arrival& arrival : happenings.arrivals) waiting_.push_back({arrival.id, arrival.model});
    std::vector<Action> actions;
    for (int gpu = 0; gpu < 2; ++gpu) {
      if (gpus_[gpu].present && gpus_[gpu].run >= 0 && ++instants_ % 3 == 0) actions.push_back(cancel(gpu));
      if (gpus_[gpu].present && gpus_[gpu].run < 0 && !waiting_.empty()) actions.push_back(dispatch(gpu));
    }
    if (waiting_.size() > 5) {
      actions.push_back(Drop{waiting_.front().id, kNone, "bored"});
      waiting_.erase(waiting_.begin());
    }
    actions.push_back(SetTimer{now + 3 * kMillisecond});
    return actions;
  }

 private:
  struct Request {
    std::int64_t id;
    int model;
  };
  struct OneGpu {
    bool present = true;
    std::int64_t run = -1;
    std::vector<Request> batch;
  };

  void hear(const RequestProfiled&) {}
  void hear(const GpuJoined& joined) { gpus_[joined.gpu].present = true; }
  void hear(const GpuLeft& left) { gpus_[left.gpu] = {false, -1, {}}; }
  template <class Ended>
  void hear(const Ended& ended) {
    OneGpu& gpu = gpus_[ended.gpu];
    if (ended.run == gpu.run) gpu.run = -1;
  }

  Preempt cancel(int gpu) {
    OneGpu& state = gpus_[gpu];
    waiting_.insert(waiting_.end(), state.batch.begin(), state.batch.end());
    return {gpu, std::exchange(state.run, -1)};
  }

  Dispatch dispatch(int gpu) {
    OneGpu& state = gpus_[gpu];
    state.batch.clear();
    const int model = waiting_.front().model;
    std::erase_if(waiting_, [&](const Request& request) {
      const bool goes = request.model == model && state.batch.size() < 3;
      if (goes) state.batch.push_back(request);
      return goes;
    });
    state.run = runs_++;
    Dispatch batch{gpu, {}, 0, state.run};
    for (const Request& request : state.batch) batch.requests.push_back(request.id);
    return batch;
  }

  OneGpu gpus_[2];
  std::vector<Request> waiting_;
  std::int64_t runs_ = 0, instants_ = 0;
};

std::string batch_cancelled(std::int64_t tag, Time at) {
  std::string out;
  PackWriter pack(out);
  pack.array(4);
  pack.text("BatchCancelled");
  pack.number(static_cast<std::uint64_t>(tag));
  for (int i = 0; i < 2; ++i) pack.number(static_cast<std::uint64_t>(at));
  return out;
}

MakeDecider make_decider(int which) {
  if (which == 2) return [](const Setup&) { return std::make_unique<Cancelling>(); };
  return live_twin(make_parameters(which == 1));
}

// Two GPUs whose scheduler is fed by an input: each byte says what happens next; words that are changed take those
// after it.
class Life {
 public:
  Life(std::string_view input, int which)
      : rest_(input.substr(0, kLongest)), admission_(2, 1 << 20), scheduler_(2, admission_, nullptr) {
    scheduler_.profile(1.0, 1);
    for (int gpu = 0; gpu < 2; ++gpu) scheduler_.worker_joined(gpu, 0);
    scheduler_.begin(make_setup(), "fuzzed", make_decider(which), 0);
  }

  void live() {
    while (!rest_.empty()) {
      const auto what = static_cast<unsigned char>(next());
      const int gpu = what >> 2 & 1;
      now_ += kMillisecond * (what >> 4);
      if (what % 4 == 0) arrive(gpu, what);
      else if (const auto oldest = scheduler_.oldest(gpu)) tell(gpu, oldest->first, what);
      if (what % 4 == 3) scheduler_.hear(gpu, rest_, now_);
      if (what % 64 == 62) lose(gpu, what >> 6 & 1);
      scheduler_.step(now_);
      scheduler_.orders.clear();
    }
    scheduler_.close();
    MUST(scheduler_.ended.size() == tickets_.size());
    std::fputs(scheduler_.last_policy_error().c_str(), stderr);
    MUST(scheduler_.policy_errors() == 0);
  }

 private:
  // Events: a policy that learns takes its time, and many lives show more than long ones.
  static constexpr std::size_t kLongest = 100;

  char next() {
    const char first = rest_.front();
    rest_.remove_prefix(1);
    return first;
  }

  void lose(int gpu, bool by_its_work) {
    scheduler_.worker_left(gpu, {"has gone", by_its_work, -1}, now_);
    scheduler_.step(now_);
    scheduler_.worker_joined(gpu, now_);
  }

  void arrive(int model, unsigned char what) {
    Ticket& ticket = tickets_.emplace_back();
    ticket.model = model;
    ticket.rows = 1 + (what >> 6);
    ticket.application = model == 0 ? what >> 3 & 1 : 0;
    ticket.received = now_;
    ticket.deadline = now_ + 100 * kMillisecond;
    scheduler_.arrive(&ticket, now_);
  }

  void tell(int gpu, std::int64_t tag, unsigned char what) {
    if (what % 8 == 6) return void(scheduler_.hear(gpu, batch_cancelled(tag, now_), now_));
    std::string words =
        batch_done(tag, now_ - kMillisecond, now_, std::vector<Time>(1 + (what >> 5), what * kMillisecond / 8));
    if (what % 4 == 1 && rest_.size() >= 2) {
      const auto at = static_cast<unsigned char>(next()) % words.size();
      words[at] = next();
    }
    scheduler_.hear(gpu, words, now_);
  }

  std::string_view rest_;
  Admission admission_;
  Scheduler scheduler_;
  std::deque<Ticket> tickets_;
  Time now_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size > 0) Life({reinterpret_cast<const char*>(data) + 1, size - 1}, data[0] % 3).live();
  return 0;
}

namespace {

std::string make_input(std::mt19937& random) {
  std::string input(random() % 400 + 1, '\0');
  for (char& byte : input) byte = static_cast<char>(random());
  return input;
}

}  // namespace
