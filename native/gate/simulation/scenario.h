// What is simulated, and what comes of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policy/decide.h"
#include "simulation/gpu_model.h"

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

}  // namespace gate::sim
