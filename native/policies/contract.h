// What a policy is told before the first event: twin of astrarium.serving.contract.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "common/units.h"

namespace astrarium {

// What is known beforehand of a model whose requests take unequal times: a batch of k takes
// c0 + c1 k max(single times); `history` holds single times by application, each in rising order.
struct Dynamic {
  Time c0;
  double c1;
  std::vector<std::vector<Time>> history;
};

struct Model {
  Time slo;
  std::vector<Time> latency;  // for batches of 0, 1, ..., max_batch, then kForever
  std::optional<Dynamic> dynamic = std::nullopt;

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

}  // namespace astrarium
