// A ticket is a client's call while it is served. It is made by the thread that read the call (its origin), handed to
// the scheduler, and handed back when all of its rows have ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/units.h"
#include "exchange/call_cost.h"
#include "messages/news.h"

namespace astrarium::front {

using protocol::Written;

// As in astrarium.serving.ledger; a call is as bad as its worst row.
enum class Outcome : std::uint8_t { kOpen, kInTime, kLate, kDropped, kFailed };

// One of a few words that metrics count; any other is the ticket's reason. Their names are in front/calls/refusals.h.
enum class Cause : std::uint8_t {
  kNone,
  kExpired,
  kSacrificed,
  kUnserved,
  kWorkerLost,
  kModelError,
  kPolicyError,
  kQuarantined,
  kInputs,  // they could not be made
  kOther
};
inline constexpr int kCauses = 10;

// Why a call's inputs could not be made.
enum class Fault : std::uint8_t {
  kModel,    // its tokenizer's, too
  kClient,   // the text's
  kTooLong,  // the same
  kNoPlace,  // too many calls are open
  kChanged,  // the model was loaded anew meanwhile
};

struct Ticket {
  // Written by the origin.
  int origin = 0;           // the number of the ring that it goes back through
  std::int64_t number = 0;  // the origin's own
  int model = 0;
  int rows = 1;
  int application = 0;
  int length = 0;  // of each row, where its model's inputs are open
  CallCost cost;   // as the admission has it
  Time received = 0, admitted = 0, deadline = 0;
  std::size_t block = 0, replies = 0, reply_bytes = 0;  // offsets in shared memory, and the bytes of one row's answer
  std::vector<Written> inputs;                          // shapes of the inputs; empty: the model's own say it all

  // Written by the scheduler.
  int open_rows = 0;
  int held = 0;  // rows in cancelled batches that a worker may still write for: until then it cannot go home
  Outcome outcome = Outcome::kOpen;  // kInTime where it is answered: the origin knows when its client has it
  Cause cause = Cause::kNone;
  Fault fault = Fault::kModel;
  std::string reason;                              // of a failure, in words for the client
  std::vector<std::vector<Written>> reply_shapes;  // by row; empty: the model's own
  bool retried = false;
  std::int64_t seen = 0;  // in which audit
  // Of the batch that carried its last row.
  int gpu = -1, batch_size = 0;
  std::int64_t batch = 0;
  Time dispatched = 0, started = 0, finished = 0, planned_end = 0;

  Time objective() const { return deadline - received; }

  // Make it as new, keeping what memory it has.
  void clear() {
    length = 0;
    cost = {};
    inputs.clear();
    reply_shapes.clear();
    reason.clear();
    open_rows = held = 0;
    outcome = Outcome::kOpen;
    cause = Cause::kNone;
    fault = Fault::kModel;
    retried = false;
    gpu = -1;
    batch_size = 0;
    batch = 0;
    dispatched = started = finished = planned_end = 0;
  }
};

}  // namespace astrarium::front
