// What a policy is told before the first event: twin of astrarium.serving.setup.
#pragma once

#include <algorithm>
#include <vector>

#include "units.h"

namespace astrarium {

struct Model {
  Time slo;
  std::vector<Time> latency;  // for batches of 0, 1, ..., max_batch, then kForever

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
