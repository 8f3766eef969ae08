// A batch is rows that run together on one GPU: made for a decision of the policy, or to try a suspect alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exchange/row.h"
#include "scheduler/batch_lengths.h"

namespace astrarium::front {

struct Batch {
  std::int64_t tag;
  int model, worker;
  bool ours;  // of the policy that decides now
  std::vector<Row> rows;
  Time dispatched, planned_end, limit;
  std::int64_t run;   // as that policy counts them
  std::string order;  // until it is sent
  BatchLengths lengths = {};
  bool sent = false;
  bool cancelled = false;  // its rows are elsewhere by now; it is sent, and its worker has not confirmed that

  bool is_solo() const { return run < 0 && rows.size() == 1; }  // no policy knows of it
};

}  // namespace astrarium::front
