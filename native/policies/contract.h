// The words of a policy: what it knows before the first event, what happens, and what it can do. Twin of
// astrarium.serving.contract.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "common/overloaded.h"
#include "common/units.h"

namespace astrarium {

// What is known beforehand of a model whose requests take unequal times: a batch of k takes
// c0 + c1 k max(single times); `history` holds single times by application, each in rising order.
struct Dynamic {
  Time c0;
  double c1;
  std::vector<std::vector<Time>> history;
};

// Who can share a run of a batch: all members, padded to the longest; those of one bucket; those of exactly one length.
enum class Together { kPadded, kBucket, kLength };

// How long batches take whose requests are of unequal length, which is rounded up to buckets.
struct Lengths {
  std::vector<std::int64_t> longest;       // of each bucket, rising
  std::vector<std::vector<Time>> latency;  // by bucket, as in Model
  Together together = Together::kPadded;

  int bucket_of(std::int64_t length) const {
    const auto bucket = std::lower_bound(longest.begin(), longest.end(), length) - longest.begin();
    return static_cast<int>(std::min<std::ptrdiff_t>(bucket, std::ssize(longest) - 1));
  }
  int max_batch(int bucket) const { return static_cast<int>(latency[static_cast<std::size_t>(bucket)].size()) - 2; }
  Time time(int bucket, int size) const {
    return latency[static_cast<std::size_t>(bucket)][static_cast<std::size_t>(size)];
  }
};

struct Model {
  Time slo;
  std::vector<Time> latency;  // for batches of 0, 1, ..., max_batch, then kForever; with lengths, of the longest
  std::optional<Dynamic> dynamic = std::nullopt;
  std::optional<Lengths> lengths = std::nullopt;

  int max_batch() const { return static_cast<int>(latency.size()) - 2; }

  int largest_batch_within(Time budget) const {
    if (budget < 0) return 0;
    const auto above = std::upper_bound(latency.begin(), latency.end(), budget);
    return std::max(0, static_cast<int>(above - latency.begin()) - 1);
  }
};

struct Network {
  Time control = 0, data = 0, response = 0;

  Time delay(int batch_size) const { return control + data * batch_size; }
};

struct Setup {
  std::vector<Model> models;
  int gpus = 0;
  Network network;
  Time preemption_cost = 0;
};

// Events are in the past tense; requests arrive apart from them, many at a time. Their names are those of Python.

struct BatchFinished {
  static constexpr const char* kName = "BatchFinished";
  int gpu;
  std::int64_t run;
  Time started;
  Time stopped = 0;  // when the GPU was done with it; 0: just now
};

struct BatchPreempted {
  static constexpr const char* kName = "BatchPreempted";
  int gpu;
  std::int64_t run;
  Time started, stopped;
};

// A request was measured alone; *request* is only for policies in Python.
struct RequestProfiled {
  static constexpr const char* kName = "RequestProfiled";
  int model, application;
  Time alone;
  std::int64_t request = -1;
};

struct BatchFailed {
  static constexpr const char* kName = "BatchFailed";
  int gpu;
  std::int64_t run;
  std::string error;
};

struct GpuJoined {
  static constexpr const char* kName = "GpuJoined";
  int gpu;
};

struct GpuLeft {
  static constexpr const char* kName = "GpuLeft";
  int gpu;
};

// The last three happen live only.
using Event = std::variant<BatchFinished, BatchPreempted, RequestProfiled, BatchFailed, GpuJoined, GpuLeft>;

// The number of a kind of event, by which Python knows it, too.
template <class Kind>
constexpr std::int64_t kind_number() {
  return []<class... Kinds>(std::type_identity<std::variant<Kinds...>>) {
    constexpr bool kSame[] = {std::is_same_v<Kind, Kinds>...};
    return std::find(std::begin(kSame), std::end(kSame), true) - std::begin(kSame);
  }(std::type_identity<Event>());
}

// The GPU whose state has changed; nothing where an event is about a request.
inline std::optional<int> gpu_of(const Event& event) {
  return std::visit(Overloaded{[](const RequestProfiled&) -> std::optional<int> { return std::nullopt; },
                               [](const auto& gpu_event) -> std::optional<int> { return gpu_event.gpu; }},
                    event);
}

// Actions are in the imperative.

// Why a policy drops a request. The record carries these as numbers (simulator/module.cpp names them).
enum Reason : std::int8_t { kNone = 0, kExpired = 1, kSacrificed = 2, kUnserved = 3 };

struct Dispatch {
  int gpu;
  std::vector<std::int64_t> requests;
  Time start;        // not before
  std::int64_t run;  // as the policy counts its batches
};

struct Drop {
  std::int64_t request;
  Reason reason;  // kNone: *why* says it in the policy's own words
  std::string why{};
};

struct SetTimer {
  Time at;
};

struct Preempt {
  int gpu;
  std::int64_t run;
};

using Action = std::variant<Dispatch, Drop, SetTimer, Preempt>;

}  // namespace astrarium
