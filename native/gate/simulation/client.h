// A client of the simulated GPU: what its CPU does, and what is under way in its stream.
#pragma once

#include <algorithm>
#include <deque>

#include "policy/learn.h"
#include "simulation/scenario.h"

namespace gate::sim {

enum class Cpu { kIdle, kLaunching, kHeld, kWaiting };

// A kernel in a stream, and the news that its end brings.
struct Queued {
    const Kernel *kernel = nullptr;
    bool ends_command = false, ends_phase = false, ends_request = false;
    bool fenced = false;  // the GPU stops before it while latency work runs
    Time at = 0;  // when the news is seen
    gate_work command{};
};

struct Request {
    Time arrival = 0, begin = kNever;
    gate_request beside{};
};

inline gate_work whole_graph(const std::vector<Kernel> &kernels) {
    gate_work all{};
    std::uint64_t by_kind[GATE_KINDS] = {};
    for (const Kernel &kernel : kernels) {
        all.duration += kernel.work.duration;
        all.sms = std::max(all.sms, kernel.work.sms);
        by_kind[kernel.work.kind] += kernel.work.duration;
    }
    all.kind = static_cast<std::uint32_t>(std::max_element(by_kind, by_kind + GATE_KINDS) - by_kind);
    return all;
}

inline bool phase_ends(const std::vector<Kernel> &kernels, std::size_t place) {
    return place + 1 == kernels.size() || kernels[place].phase != kernels[place + 1].phase;
}

struct Client {
    explicit Client(const ClientSpec &s) : spec(&s), graph(whole_graph(s.kernels)) {}

    const ClientSpec *spec;
    gate_work graph;  // of a request, where it is launched as a whole
    Cpu cpu = Cpu::kIdle;
    Time at = 0;  // of the next act of the CPU; kNever: waits for others
    Time held_since = 0;
    bool could_go = false;  // held, but only until others have ended
    std::size_t position = 0;    // of the next command in its request
    std::int64_t begun = 0;      // requests that the CPU has turned to
    std::int64_t in_flight = 0;  // commands
    std::int64_t on_gpu = 0;     // requests launched that the GPU is not through with
    Time ready = 0;              // before, its stream starts no kernel
    std::uint64_t unfenced = 0;  // ns launched since the last fence
    std::uint64_t phases = 0, phases_ended = 0;  // launched to their end, and ended
    std::deque<Request> open;  // turned to, and not ended
    std::deque<Queued> stream;  // the first of it is on the GPU, or about to be
    std::deque<Queued> news;    // ends that nobody has seen yet
    ClientResult result;

    bool latency() const { return spec->role == GATE_LATENCY; }
    std::size_t commands() const { return spec->graph ? 1 : spec->kernels.size(); }
    bool waits() const { return !open.empty() && open.back().begin == kNever; }  // a request for its first launch
    bool running() const { return !open.empty() && open.front().begin != kNever; }
};

}  // namespace gate::sim
