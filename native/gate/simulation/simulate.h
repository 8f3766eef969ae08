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

#include <vector>

#include "simulation/scenario.h"

namespace gate::sim {

// Throws std::invalid_argument for what cannot be simulated.
Result simulate(const Setting &setting, const std::vector<ClientSpec> &clients);

}  // namespace gate::sim
