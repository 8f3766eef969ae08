// A GPU as a fluid: what runs side by side, and how fast. Nothing is preempted.
//
// Space. How many blocks of a kernel fit onto an SM is limited by registers and shared memory for compute kernels, and
// by threads for all others. So blocks of both live on one SM: a compute kernel that fills n SMs takes all of their
// registers and `kComputeThreads` of their threads, any other kernel all of their threads and no registers to speak
// of. A kernel takes what space is free when its turn comes, and more as others end; without any it waits. With a
// share g of the SMs it fills it runs at g of its speed.
//
// Contention. Alone, a kernel uses a part of the GPU's arithmetic and of its memory bandwidth. Where those that run
// ask together for more than there is, each is slowed by how much it depends on that resource: wholly from a use of
// 60 % on (which Nsight calls bound by it), less below. Kernels side by side also disturb each other (caches,
// memory rows), so that together they get only `shared_capacity` of each resource.
//
// Orion's Table 2 sets both numbers. A convolution that fills all SMs runs beside a batch normalization that fills
// 40 % of them, so that it takes at most 60 % of the threads; that most is also what comes nearest to the latencies
// measured on an H200 with two plain streams. With a capacity of 0.91 all three pairs are within 3 % of the printed.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "policy/decide.h"

namespace gate::sim {

using Time = std::int64_t;  // nanoseconds
inline constexpr Time kNever = std::numeric_limits<Time>::max();
inline constexpr int kResources = 2;  // arithmetic, memory bandwidth
inline constexpr double kComputeThreads = 0.6;
inline constexpr double kLeastSpace = 1e-6;  // of an SM: less is what rounding leaves over
inline constexpr double kBound = 0.6;

struct Kernel {
    gate_work work{};                      // duration alone, SMs, kind: what policies know, too
    std::array<double, kResources> use{};  // of the whole GPU, alone: from 0 to 1
    int phase = 0;                         // forward and backward alternate (0 and 1)
};

struct GpuSpec {
    std::uint32_t sms = 80;
    double shared_capacity = 0.91;
    bool priority = false;  // freed SMs go to latency kernels first, not to who came first
};

struct Usage {
    double sms = 0, compute = 0, memory = 0;  // integrals over time, of the whole GPU
};

// One stream for each client, so at most one kernel of each is here.
class GpuModel {
  public:
    GpuModel(const GpuSpec &spec, std::size_t streams) : spec_(spec), slots_(streams) {}

    bool free(std::size_t stream) const { return slots_[stream].kernel == nullptr; }
    Time ends(std::size_t stream) const { return slots_[stream].ends; }
    const Usage &usage() const { return usage_; }

    void start(std::size_t stream, const Kernel &kernel, bool favoured, Time now) {
        const double need = std::min<double>(kernel.work.sms, spec_.sms);
        const bool compute = kernel.work.kind == GATE_COMPUTE;
        const auto left = static_cast<double>(kernel.work.duration);
        slots_[stream] = {&kernel, compute, need, 0, left, 0, now, kNever, favoured, 0};
    }

    void end(std::size_t stream) { slots_[stream] = Slot{}; }

    // Time passes at the present speeds.
    void advance(Time now) {
        const auto passed = static_cast<double>(now - now_);
        double busy = 0.0;
        for (Slot &slot : slots_)
            if (slot.kernel != nullptr) {
                slot.left -= slot.speed * passed;
                busy += slot.granted / spec_.sms;
                usage_.compute += slot.kernel->use[0] * slot.speed * passed;
                usage_.memory += slot.kernel->use[1] * slot.speed * passed;
            }
        usage_.sms += std::min(1.0, busy) * passed;
        now_ = now;
    }

    // After kernels have started or ended: who gets which SMs, and how fast each runs from now on.
    void settle() {
        grant();
        std::array<double, kResources> pressure{};
        for (int resource = 0; resource < kResources; ++resource) pressure[resource] = pressure_on(resource);
        for (Slot &slot : slots_)
            if (slot.kernel != nullptr) {
                double slowed = 1.0;
                for (int resource = 0; resource < kResources; ++resource)
                    slowed += dependence(slot, resource) * pressure[resource];
                slot.speed = share(slot) / slowed;
                slot.ends = slot.speed > 0 ? now_ + whole(slot.left / slot.speed) : kNever;
            }
    }

  private:
    struct Slot {
        const Kernel *kernel = nullptr;
        bool compute = false;
        double need = 0, granted = 0;  // SMs
        double left = 0;               // ns of work, at full speed
        double speed = 0;
        Time since = 0, ends = kNever;
        bool favoured = false;
        std::uint64_t round = 0;  // in which it was last given SMs
    };

    static Time whole(double ns) { return static_cast<Time>(std::ceil(std::max(0.0, ns - 1e-6))); }
    static double share(const Slot &slot) { return slot.need > 0 ? slot.granted / slot.need : 1.0; }
    static double dependence(const Slot &slot, int resource) {
        return std::min(1.0, slot.kernel->use[static_cast<std::size_t>(resource)] / kBound);
    }

    bool before(const Slot &one, const Slot &other) const {
        if (spec_.priority && one.favoured != other.favoured) return one.favoured;
        return one.since < other.since;
    }

    // Of the SMs that a kernel lacks, as many as have its registers and its threads free.
    double free_for(const Slot &lacking) const {
        double registers = spec_.sms, threads = spec_.sms;
        for (const Slot &slot : slots_) {
            registers -= slot.compute ? slot.granted : 0.0;
            threads -= slot.compute ? kComputeThreads * slot.granted : slot.granted;
        }
        const double sms = lacking.compute ? std::min(registers, threads / kComputeThreads) : threads;
        return sms < kLeastSpace ? 0.0 : std::min(sms, lacking.need - lacking.granted);
    }

    // The next in order that lacks SMs and was not asked in this round; of equals the one with the lower number.
    Slot *next_lacking(std::uint64_t round) {
        Slot *next = nullptr;
        for (Slot &slot : slots_) {
            const bool lacks = slot.kernel != nullptr && slot.granted < slot.need && slot.round != round;
            if (lacks && (next == nullptr || before(slot, *next))) next = &slot;
        }
        return next;
    }

    void grant() {
        ++round_;
        for (Slot *slot = next_lacking(round_); slot != nullptr; slot = next_lacking(round_)) {
            const double more = free_for(*slot), lack = slot->need - slot->granted;
            slot->granted = more < lack ? slot->granted + more : slot->need;
            slot->round = round_;
        }
    }

    // How much longer everything that depends on a resource takes, so that what is used of it fits: solved for
    // the sum of use / (1 + dependence * pressure) = capacity, by Newton's method on the sum's inverse.
    double pressure_on(int resource) const {
        const auto running = std::count_if(slots_.begin(), slots_.end(), [](const Slot &s) { return s.granted > 0; });
        const double capacity = running > 1 ? spec_.shared_capacity : 1.0;
        double pressure = 0.0;
        for (int step = 0; step < 4; ++step) {
            double used = 0.0, slope = 0.0;
            for (const Slot &slot : slots_) {
                if (slot.kernel == nullptr) continue;
                const double d = dependence(slot, resource), slowed = 1.0 + d * pressure;
                const double asked = slot.kernel->use[static_cast<std::size_t>(resource)] * share(slot);
                used += asked / slowed;
                slope += asked * d / (slowed * slowed);
            }
            if (used <= capacity || slope == 0.0) break;
            pressure += (used - capacity) * used / (capacity * slope);
        }
        return pressure;
    }

    GpuSpec spec_;
    std::vector<Slot> slots_;
    Usage usage_;
    Time now_ = 0;
    std::uint64_t round_ = 0;
};

}  // namespace gate::sim
