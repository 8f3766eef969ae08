// Twin of ModelCandidates in astrarium.serving.policies.clockwork: one candidate for each batch size of a model,
// as they stood when last looked at.
#pragma once

#include <algorithm>
#include <vector>

#include "policies/entries.h"

namespace astrarium {

class Candidates {
 public:
  Candidates(const Model& model, const Network& network, bool powers_of_two)
      : latency(model.latency),
        costs(batch_costs(model, network)),
        max_batch_(model.max_batch()),
        powers_of_two_(powers_of_two) {
    for (int size = 0; size <= max_batch_; ++size) delays.push_back(network.delay(size));
  }

  EntryQueue queue;
  std::vector<Time> latency, costs, delays;
  Time latest = kForever;    // the earliest of the candidates' latest moments
  int urgent = 0;            // the batch size of the candidate that it belongs to
  int size = 0, first = 0;   // the largest batch that can be filled (0: nothing waits), where it begins
  std::int64_t version = 0;  // tells this look from earlier ones

  // When a batch ends that leaves now for a GPU that is free at `free`.
  Time finish(int batch, Time now, Time free) const {
    const auto row = static_cast<std::size_t>(batch);
    return std::max(now + costs[row], free + latency[row]);
  }

  void look(Time now, Time free) {
    latest = kForever;
    urgent = size = first = 0;
    ++version;
    looked_now_ = now;
    looked_free_ = free;
    int head = 0;
    for (int batch = 1; batch <= max_batch_; batch = powers_of_two_ ? 2 * batch : batch + 1) {
      head = queue.due_before(finish(batch, now, free), head);
      if (queue.size() - head < batch) break;
      size = batch;
      first = head;
      const Time moment = queue.due(head) - latency[static_cast<std::size_t>(batch)];
      if (moment < latest) {
        latest = moment;
        urgent = batch;
      }
    }
  }

  bool outdated(Time now, Time free) const {
    return latest < std::max(free, now + delays[static_cast<std::size_t>(size)]) &&
           (looked_now_ != now || looked_free_ != free);
  }

 private:
  int max_batch_;
  bool powers_of_two_;
  Time looked_now_ = -1, looked_free_ = -1;
};

}  // namespace astrarium
