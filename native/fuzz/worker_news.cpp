// A fuzzer of what workers say, and of the scheduler that hears it: true words, changed words and any bytes, while a
// policy learns from them. Whatever comes, every ticket ends.
//
// native/fuzz/run.py builds and runs it.
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <string_view>

#include "front/feed.h"
#include "live_twins.h"

using namespace astrarium;
using namespace astrarium::front;

#include "drive.h"

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

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// Each byte of the input says what happens next; words that are changed take the bytes after it.
void play(std::string_view input, bool orloj) {
  Admission admission(2, 1 << 20);
  Scheduler scheduler(2, admission, &make_live_policy);
  scheduler.profile(1.0, 1);
  for (int gpu = 0; gpu < 2; ++gpu) scheduler.gpu_joined(gpu, 0);
  scheduler.begin(make_setup(), make_parameters(orloj), 0);
  std::deque<Ticket> tickets;
  std::size_t ended = 0;
  Time now = 0;
  for (std::size_t at = 0; at < input.size(); ++at) {
    const auto what = static_cast<unsigned char>(input[at]);
    const int gpu = what >> 2 & 1;
    now += kMillisecond * (what >> 4);
    if (what % 4 == 0) {
      Ticket& ticket = tickets.emplace_back();
      ticket.model = gpu, ticket.rows = 1 + (what >> 6), ticket.application = gpu == 0 ? what >> 3 & 1 : 0;
      ticket.received = now, ticket.deadline = now + 100 * kMillisecond;
      scheduler.arrive(&ticket, now);
    } else if (const auto oldest = scheduler.oldest(gpu)) {
      std::string words = batch_done(oldest->first, now - kMillisecond, now, std::vector<Time>(1 + (what >> 5), what * kMillisecond / 8));
      if (what % 4 == 1 && at + 2 < input.size()) {
        words[static_cast<unsigned char>(input[at + 1]) % words.size()] = input[at + 2];
        at += 2;
      }
      scheduler.hear(gpu, words, now);
    }
    if (what % 4 == 3) scheduler.hear(gpu, input.substr(at), now);
    scheduler.step(now);
    scheduler.orders.clear();
  }
  scheduler.close();
  ended += scheduler.ended.size();
  if (ended != tickets.size()) fail("not every ticket has ended once");
  if (scheduler.policy_errors()) fail(scheduler.last_policy_error().c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size > 0) play({reinterpret_cast<const char*>(data) + 1, size - 1}, data[0] % 2);
  return 0;
}

namespace {

std::string made(std::mt19937& random) {
  std::string input(random() % 400 + 1, '\0');
  for (char& byte : input) byte = static_cast<char>(random());
  return input;
}

}  // namespace
