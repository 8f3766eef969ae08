// A fuzzer of what workers say, and of the scheduler that hears it: true words, changed words and any bytes, while a
// policy learns from them. Whatever comes, every ticket ends.
//
// native/fuzz/run.py builds and runs it.
#include <deque>
#include <random>
#include <string>
#include <string_view>

#include "front/feed.h"
#include "live_twins.h"

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
  if (!orloj) return {"astrarium", {{"lookahead", 1}, {"few_gpus", 0}, {"lines", 0}, {"memory", 50 * kMillisecond}}, {{"patience", -1.0}}, {}};
  return {"orloj", {{"bins", 32}, {"window", 50 * kMillisecond}, {"refresh", 0}, {"own", 1}, {"latest", 0}},
          {{"rate", 1e-10}, {"farthest", 250.0}}, {{"batch_sizes", {}}}};
}

// Two GPUs whose scheduler is fed by an input: each byte says what happens next; words that are changed take those after it.
class Life {
 public:
  Life(std::string_view input, bool orloj) : rest_(input.substr(0, kLongest)), admission_(2, 1 << 20), scheduler_(2, admission_, &make_live_policy, nullptr) {
    scheduler_.profile(1.0, 1);
    for (int gpu = 0; gpu < 2; ++gpu) scheduler_.worker_joined(gpu, 0);
    scheduler_.begin(make_setup(), make_parameters(orloj), 0);
  }

  void live() {
    while (!rest_.empty()) {
      const auto what = static_cast<unsigned char>(next());
      const int gpu = what >> 2 & 1;
      now_ += kMillisecond * (what >> 4);
      if (what % 4 == 0) arrive(gpu, what);
      else if (const auto oldest = scheduler_.oldest(gpu)) tell(gpu, oldest->first, what);
      if (what % 4 == 3) scheduler_.hear(gpu, rest_, now_);
      scheduler_.step(now_);
      scheduler_.orders.clear();
    }
    scheduler_.close();
    MUST(scheduler_.ended.size() == tickets_.size());
    std::fputs(scheduler_.last_policy_error().c_str(), stderr);
    MUST(scheduler_.policy_errors() == 0);
  }

 private:
  static constexpr std::size_t kLongest = 100;  // events: a policy that learns takes its time, and many lives show more than long ones

  char next() {
    const char first = rest_.front();
    rest_.remove_prefix(1);
    return first;
  }

  void arrive(int model, unsigned char what) {
    Ticket& ticket = tickets_.emplace_back();
    ticket.model = model, ticket.rows = 1 + (what >> 6), ticket.application = model == 0 ? what >> 3 & 1 : 0;
    ticket.received = now_, ticket.deadline = now_ + 100 * kMillisecond;
    scheduler_.arrive(&ticket, now_);
  }

  void tell(int gpu, std::int64_t run, unsigned char what) {
    std::string words = batch_done(run, now_ - kMillisecond, now_, std::vector<Time>(1 + (what >> 5), what * kMillisecond / 8));
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
  if (size > 0) Life({reinterpret_cast<const char*>(data) + 1, size - 1}, data[0] % 2).live();
  return 0;
}

namespace {

std::string made(std::mt19937& random) {
  std::string input(random() % 400 + 1, '\0');
  for (char& byte : input) byte = static_cast<char>(random());
  return input;
}

}  // namespace
