// What the lengths of a batch's rows come to: how long it is planned to take, and how much of its work is padding.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "exchange/row.h"
#include "policies/contract.h"

namespace astrarium::front {

struct BatchLengths {
  Time estimate = 0;
  int bucket = 0;             // of the only run; -1: it takes several
  std::int64_t length = 0;    // of all rows together
  std::int64_t computed = 0;  // the same with what they are padded to
};

// A table ends in forever, also for a batch that is larger than any that it knows.
inline Time planned_time(const std::vector<Time>& latency, std::size_t size) {
  return latency[std::min(size, latency.size() - 1)];
}

// Rows that can share a run, by bucket and (where only equal ones can) by length.
inline std::vector<std::pair<int, int>> kinds_of(const Lengths& lengths, const std::vector<Row>& rows) {
  std::vector<std::pair<int, int>> kinds;
  for (const Row& row : rows) {
    const int length = row.ticket->length;
    kinds.emplace_back(lengths.bucket_of(length), lengths.together == Together::kLength ? length : 0);
  }
  std::sort(kinds.begin(), kinds.end());
  return kinds;
}

inline BatchLengths lengths_of(const Model& model, const std::vector<Row>& rows) {
  BatchLengths batch;
  if (!model.lengths) {
    batch.estimate = planned_time(model.latency, rows.size());
    return batch;
  }
  const Lengths& lengths = *model.lengths;
  for (const Row& row : rows) batch.length += row.ticket->length;
  int runs = 0;
  const auto add_run = [&](std::size_t size, int bucket) {
    batch.estimate =
        std::min(kForever, batch.estimate + planned_time(lengths.latency[static_cast<std::size_t>(bucket)], size));
    batch.computed += static_cast<std::int64_t>(size) * lengths.longest[static_cast<std::size_t>(bucket)];
    batch.bucket = runs++ == 0 ? bucket : -1;
  };
  const auto kinds = kinds_of(lengths, rows);
  if (lengths.together == Together::kPadded) {
    add_run(rows.size(), kinds.back().first);
  } else {
    for (std::size_t first = 0, next = 0; first < kinds.size(); first = next) {
      while (next < kinds.size() && kinds[next] == kinds[first]) ++next;
      add_run(next - first, kinds[first].first);
    }
  }
  return batch;
}

}  // namespace astrarium::front
