// One GPU shared by clients, in virtual time: every launch asks gate_decide, as it does in the preloaded library.
//
// A client works through requests (or training iterations) one after another. For each, its CPU launches the
// kernels in order, `gap` apart, into a stream of its own; a graph is launched as one command. A launch that the
// policy holds is asked again when something has changed, `relaunch` later. Kernels of one stream run in order;
// what runs side by side, and how fast, is said in gpu_model.h. Between two kernels of a stream its client has
// nothing on the GPU for a while (`between`). The end of a kernel is seen `seen` later: only then does the policy
// know of it and a client that waits for its request go on.
//
// What the policy is told, as the library does: a latency request runs from its first launch until its end is seen;
// `beside` holds the best-effort ns launched meanwhile by kind, with GATE_BEFORE for what was in flight when it
// began. Both are learnt from when it ends. Best-effort clients that are held take turns. Under a policy with fences
// a client of another process does not look at latency work when it launches: the GPU stops before its fences. One
// that is open holds its stream up for `fence`: the GPU reads a word in the host's memory. 1.5 us is what best-effort
// training lost on an H200 for each fence and latency client that it asked.
//
// No chance in here; of clients that act in the same nanosecond the one with the lower number is first.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "decide.h"
#include "gpu_model.h"
#include "learn.h"

namespace gate::sim {

struct ClientSpec {
  gate_class role = GATE_BEST_EFFORT;
  std::vector<Kernel> kernels;                // of one request
  std::optional<std::vector<Time>> arrivals;  // in order; none: a request begins when the one before has ended
  std::int64_t requests = 0;                  // of a closed loop; 0: without end
  Time gap = 0;                               // what a launch costs the client's CPU
  bool graph = false;
  bool synchronize = true;  // wait for a request's end before the next is launched
  std::int64_t ahead = 1024;  // commands launched and not ended: more do not fit into the driver's queue
  Time between = 0;           // from the end of a kernel to the start of the next
};

struct Setting {
  GpuSpec gpu;
  gate_knobs knobs{};
  Time until = kNever;
  Time seen = 3000, relaunch = 2000, fence = 1500;
  bool one_interpreter = false;  // clients are threads of one Python process: one launches at a time, no fences
  bool learn = true;             // what the policy's knobs are learnt from requests
  double search_limit = 0;       // > 0: Orion's search for sm_threshold, with this much longer requests allowed
};

struct ClientResult {
  std::vector<Time> arrival, begin, end;  // of the requests that ended; begin is the first launch
  std::int64_t launches = 0, kernels = 0, held_ns = 0;
  std::vector<std::int64_t> held = std::vector<std::int64_t>(GATE_VERDICTS, 0);  // launches, by why they first waited
};

struct Result {
  std::vector<ClientResult> clients;
  Usage usage;
  Time ended = 0;
  gate_knobs knobs{};  // as learnt
};

// Throws std::invalid_argument for what cannot be simulated.
Result simulate(const Setting& setting, const std::vector<ClientSpec>& clients);

}  // namespace gate::sim
