// What a person may set on a board: one table of names, units, ranges and places.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <variant>

#include "board/knobs.h"
#include "board/layout.h"
#include "board/reads.h"

namespace gate {

// A copy of all that can be set. It is changed as a whole: nothing is half-applied.
struct BoardSettings {
    gate_knobs knobs;
    std::uint64_t lease, long_kernel, chunk;
    std::uint32_t partition;
    double search_limit;
};

using Slot = std::variant<std::uint32_t *, std::uint64_t *, double *>;

struct BoardSetting {
    const char *name;
    const char *unit;  // ns, bytes, sms, kernels, share or factor
    double least, most;
    Slot (*slot)(BoardSettings &);
    const char *about;
};

inline constexpr double HOUR = static_cast<double>(GATE_HOUR);
inline constexpr double MOST_SMS = GATE_MOST_SMS;
inline constexpr double MOST_HARM = 4;  // as far as learning goes (policy/learn.c)

inline constexpr BoardSetting SETTINGS[] = {
    {"sms", "sms", 1, MOST_SMS, [](BoardSettings &at) -> Slot { return &at.knobs.sms; }, "of the GPU"},
    {"latency", "ns", 1, HOUR, [](BoardSettings &at) -> Slot { return &at.knobs.latency; },
     "how long a latency request takes alone; learnt while requests run"},
    {"duration_fraction", "share", 0, 100, [](BoardSettings &at) -> Slot { return &at.knobs.duration_fraction; },
     "orion: best-effort work in flight, as a share of the latency alone"},
    {"sm_threshold", "sms", 0, MOST_SMS, [](BoardSettings &at) -> Slot { return &at.knobs.sm_threshold; },
     "orion: best-effort kernels beside latency work need fewer SMs than this; 0: than the GPU has"},
    {"search_limit", "share", 0, GATE_MOST_SEARCH_LIMIT, [](BoardSettings &at) -> Slot { return &at.search_limit; },
     "for latency clients that want throughput: how much longer their requests may get; 0: none do"},
    {"depth", "kernels", 1, 1e6, [](BoardSettings &at) -> Slot { return &at.knobs.depth; },
     "reef-n: best-effort kernels in flight"},
    {"window", "ns", 0, HOUR, [](BoardSettings &at) -> Slot { return &at.knobs.window; },
     "astrarium: best-effort work that a request may find before it; 0: by its latency"},
    {"allowance", "share", 0, 100, [](BoardSettings &at) -> Slot { return &at.knobs.allowance; },
     "astrarium: by what share of its latency a request may be delayed"},
    {"harm_unknown", "factor", 0, MOST_HARM, [](BoardSettings &at) -> Slot { return &at.knobs.harm[GATE_UNKNOWN]; },
     "astrarium: delay for each ns that a kernel of an unknown kind runs beside a request; learnt"},
    {"harm_compute", "factor", 0, MOST_HARM, [](BoardSettings &at) -> Slot { return &at.knobs.harm[GATE_COMPUTE]; },
     "astrarium: the same for kernels that compute"},
    {"harm_memory", "factor", 0, MOST_HARM, [](BoardSettings &at) -> Slot { return &at.knobs.harm[GATE_MEMORY]; },
     "astrarium: the same for kernels that move memory"},
    {"harm_copy", "factor", 0, MOST_HARM, [](BoardSettings &at) -> Slot { return &at.knobs.harm[GATE_COPY]; },
     "astrarium: the same for copies"},
    {"harm_before", "factor", 0, MOST_HARM, [](BoardSettings &at) -> Slot { return &at.knobs.harm[GATE_BEFORE]; },
     "astrarium: the same for what was in flight when the request came"},
    {"lease", "ns", GATE_LEAST_LEASE, HOUR, [](BoardSettings &at) -> Slot { return &at.lease; },
     "latency work without a sign of life for so long is taken to be over"},
    {"partition", "sms", 0, MOST_SMS, [](BoardSettings &at) -> Slot { return &at.partition; },
     "astrarium: SMs that best-effort kernels too long to wait for may use; 0: all"},
    {"long_kernel", "ns", 0, HOUR, [](BoardSettings &at) -> Slot { return &at.long_kernel; },
     "astrarium: from this duration on they are too long; 0: four windows"},
    {"chunk", "bytes", GATE_LEAST_CHUNK, GATE_MOST_CHUNK, [](BoardSettings &at) -> Slot { return &at.chunk; },
     "bytes of a best-effort copy at a time"},
};

// "NAME: expected WHAT": the Python side makes an error of its own of it.
[[noreturn]] inline void refuse(const std::string &name, const std::string &expected) {
    throw std::invalid_argument(name + ": expected " + expected);
}

inline std::string number(double value) {
    auto whole = static_cast<std::int64_t>(value);
    return static_cast<double>(whole) == value ? std::to_string(whole) : std::to_string(value);
}

inline const BoardSetting &setting_named(const std::string &name) {
    std::string known;
    for (const BoardSetting &setting : SETTINGS) {
        if (name == setting.name) return setting;
        known += (known.empty() ? "" : ", ") + std::string(setting.name);
    }
    refuse(name, "one of " + known);
}

inline void set_value(const BoardSetting &setting, BoardSettings &at, double value) {
    std::string range = number(setting.least) + " to " + number(setting.most);
    bool real = std::holds_alternative<double *>(setting.slot(at));
    if (!real && value != std::floor(value)) refuse(setting.name, "a whole number, " + range);
    if (!(value >= setting.least && value <= setting.most)) refuse(setting.name, "a number, " + range);
    std::visit([&](auto *slot) { *slot = static_cast<std::remove_reference_t<decltype(*slot)>>(value); },
               setting.slot(at));
}

inline double value_of(const BoardSetting &setting, BoardSettings &at) {
    return std::visit([](auto *slot) { return static_cast<double>(*slot); }, setting.slot(at));
}

inline BoardSettings settings_of(const gate_board *board) {
    return {gate_board_knobs(board), gate_board_lease(board),     gate_board_long_kernel(board),
            gate_board_chunk(board), gate_board_partition(board), gate_board_search_limit(board)};
}

// The new policy begins with its defaults, but for what was learnt.
inline void choose(BoardSettings &at, std::uint32_t policy) {
    if (policy == at.knobs.policy) return;
    gate_knobs fresh = gate_defaults(policy, at.knobs.sms);
    fresh.latency = at.knobs.latency;
    for (int kind = 0; kind < GATE_KINDS; kind++) fresh.harm[kind] = at.knobs.harm[kind];
    at.knobs = fresh;
}

template <typename Value>
void store(Value &field, Value value) {
    __atomic_store(&field, &value, __ATOMIC_RELEASE);
}

inline void write_settings(gate_board *board, const BoardSettings &at) {
    if (at.search_limit != board->search_limit || at.knobs.policy != board->knobs.policy) {
        board->search = {};
        board->throttle = GATE_FIRST_THROTTLE;
    }
    store(board->search_limit, at.search_limit);
    store(board->lease, at.lease);
    store(board->partition, at.partition);
    store(board->long_kernel, at.long_kernel);
    store(board->chunk, at.chunk);
    gate_board_set_knobs(board, &at.knobs);  // wakes whoever waits
}

}  // namespace gate
