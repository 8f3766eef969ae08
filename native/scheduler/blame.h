// Whose fault the loss of a worker was: the batch that broke it is suspect, and its model is told of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/batch.h"

namespace astrarium::front {

// How a worker was lost.
struct Loss {
  std::string reason;
  bool by_its_work = false;  // what it ran may have broken it; else somebody outside ended it
  std::int64_t tag = -1;     // the batch that it named in its last words; -1: it named none
};

// Whose fault a loss was: a model (-1: it ran none), and so many of its calls. It is certain where the work broke the
// worker; else somebody outside may have ended it.
struct Blame {
  int model = -1, calls = 0;
  bool certain = false;
};

// The one of the *lost* batches that the worker named, or the first that it had; nothing where somebody outside may
// have ended it, which is believed of a call once.
inline const Batch* guilty_of(const std::vector<Batch>& lost, const Loss& loss) {
  if (lost.empty() || !lost.front().sent) return nullptr;
  const auto named_batch =
      std::find_if(lost.begin(), lost.end(), [&](const Batch& batch) { return batch.sent && batch.tag == loss.tag; });
  const Batch& suspected = named_batch == lost.end() ? lost.front() : *named_batch;
  const bool again =
      std::any_of(suspected.rows.begin(), suspected.rows.end(), [](const Row& row) { return row.ticket->retried; });
  return loss.by_its_work || again ? &suspected : nullptr;
}

inline Blame blame_for(const std::vector<Batch>& lost, const Batch* guilty) {
  if (guilty == nullptr && (lost.empty() || !lost.front().sent)) return {};
  const Batch& blamed = guilty == nullptr ? lost.front() : *guilty;
  return {blamed.model, static_cast<int>(blamed.rows.size()), guilty != nullptr};
}

}  // namespace astrarium::front
