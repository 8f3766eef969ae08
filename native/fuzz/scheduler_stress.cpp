// A stress of the scheduler's thread with real workers' loops: threads hand in calls, alone and many at once, and wait
// for them to come back; whoever finds nothing under way takes the scheduler's turn, but where Python is asked. Every
// call must end well.
//
// native/fuzz/run.py builds and runs it.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string_view>
#include <thread>
#include <vector>

#include "policies/live_twins.h"
#include "scheduler/scheduler_thread.h"
#include "worker/scheduler_connection.h"
#include "worker/timed_model.h"

#include "must.h"

namespace {

using namespace astrarium;
using namespace astrarium::front;

constexpr int kThreads = 2, kGpus = 2, kModels = 3;
constexpr Time kSlo = Time{600} * 1'000'000'000;

// Serves one GPU until the other end is gone.
void work(int socket, char* memory, std::size_t size) {
  worker::SchedulerConnection connection(socket);
  worker::BatchLoop loop(connection, {memory, size});
  const protocol::Datatype* type = protocol::datatype("FP32");
  for (int model = 0; model < kModels; ++model)
    loop.know(model, std::make_shared<worker::TimedModel>(
                         std::vector<Time>{0, 1000, 2000, 3000, 4000}, std::vector<protocol::Spec>{{"IN", type, {2}}},
                         std::vector<protocol::Spec>{{"OUT", type, {2}}}, std::vector<int>{0}));
  bool gone = false;
  while (!gone) loop.serve(0, [&gone](std::string_view packet, Time) { return gone = packet.empty(); });
  ::close(socket);
}

// As a network thread does it: some calls at once, then sleep until all have come back.
void ask(Exchange& exchange, int number, long calls) {
  Origin& origin = *exchange.origins[static_cast<std::size_t>(number)];
  std::deque<Ticket> tickets(7);
  for (long done = 0; done < calls;) {
    const std::size_t burst = done % 3 ? 1 : tickets.size();
    for (std::size_t i = 0; i < burst; ++i) {
      Ticket& ticket = tickets[i];
      ticket.clear();
      const std::size_t place = (static_cast<std::size_t>(number) * tickets.size() + i) * 512;
      ticket.origin = number;
      ticket.model = static_cast<int>(done + static_cast<long>(i)) % kModels;
      ticket.block = place;
      ticket.replies = place + 256;
      ticket.reply_bytes = 64;
      ticket.received = monotonic_ns();
      ticket.deadline = ticket.received + kSlo;
      MUST(origin.sent.push(&ticket));
    }
    exchange.hand_in();
    for (std::size_t back = 0; back < burst;) {
      Ticket* ticket = nullptr;
      for (; origin.back.pop(ticket); ++back) {
        MUST(ticket->outcome == front::Outcome::kInTime);
      }
      origin.bell.sleeps();
      pollfd bell{origin.bell.fd(), POLLIN, 0};
      if (back < burst && origin.back.empty()) {
        MUST(::poll(&bell, 1, 20'000) == 1);
      }
      origin.bell.wakes();
    }
    done += static_cast<long>(burst);
  }
}

// Stands for a policy in Python; it must be asked by the scheduler's own thread only.
class InPython final : public Decider {
 public:
  explicit InPython(const Setup& setup) : policy_(setup, {"eager", {{"fcfs", 0}}, {}, {}}, &make_live_policy) {}
  bool is_python() const override { return true; }
  bool listens_to_profiler() const override { return false; }
  std::vector<Action> decide(Time now, const Happenings& happenings) override {
    MUST(!is_network_thread);
    return policy_.decide(now, happenings);
  }
  static thread_local bool is_network_thread;

 private:
  LivePolicy policy_;
};
thread_local bool InPython::is_network_thread = false;

}  // namespace

int main(int count, char** words) {
  const long calls = count > 1 ? std::strtol(words[1], nullptr, 10) : 2000;
  std::vector<char> memory(1 << 16);
  Exchange exchange(memory.data(), memory.size(), kModels, 64, kThreads + 1);
  SchedulerThread scheduler(exchange, kGpus);
  std::vector<std::thread> workers, askers;
  std::vector<int> sockets;
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    int ends[2];
    MUST(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    workers.emplace_back(work, ends[1], memory.data(), memory.size());
    scheduler.watch(gpu, ends[0]);
    scheduler.worker_joined(gpu);
    sockets.push_back(ends[0]);
  }
  const Model model{kSlo, {0, 1000, 2000, 3000, 4000, kForever}};
  scheduler.start();
  const Setup setup{std::vector<Model>(kModels, model), kGpus, {}, 0};
  std::atomic<bool> asks = true;  // as Python does, whatever the scheduler's thread is at
  std::thread questions([&] {
    while (asks.load()) {
      MUST(scheduler.ask([](Scheduler& one) { return one.held(); }) >= 0);
      MUST(scheduler.ask([](const Scheduler& one) { return one.waiting(); }) >= 0);
      scheduler.batches();
    }
  });
  const MakeDecider deciders[] = {live_twin({"eager", {{"fcfs", 0}}, {}, {}}),
                                  [](const Setup& fresh) { return std::make_unique<InPython>(fresh); }};
  for (const MakeDecider& decider : deciders) {
    scheduler.begin(setup, "eager", decider);
    for (int number = 0; number < kThreads; ++number)
      askers.emplace_back([&exchange, number, calls] {
        InPython::is_network_thread = true;
        ask(exchange, number, calls);
      });
    for (std::thread& asker : askers) asker.join();
    askers.clear();
  }
  asks.store(false);
  questions.join();
  scheduler.stop();
  for (const int socket : sockets) ::close(socket);
  for (std::thread& worker : workers) worker.join();
  std::printf("%ld calls of each of %d threads ended well\n", calls, kThreads);
}
