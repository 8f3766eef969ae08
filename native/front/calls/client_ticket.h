// A call on its way, as the network thread knows it that has read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "exchange/regions.h"
#include "exchange/ticket.h"
#include "protocol/call.h"
#include "protocol/trim.h"

namespace astrarium::front {

struct ClientTicket;

// Who waits for a call's answer.
struct Caller {
  ClientTicket* ticket = nullptr;  // the call
};

// A call on its way, and whose it is.
struct ClientTicket : Ticket {
  protocol::Call call;
  Caller* caller = nullptr;  // nothing: its client has gone
  std::uint64_t connection = 0;
  RegionOwner owner;                 // of the regions that it may use
  std::vector<RegionPart> from;      // by input; empty: none lies in a region
  std::vector<RegionPart> to;        // by wanted output; empty: none goes to a region
  ClientTicket* whole = nullptr;     // the call of which this is one text
  std::vector<ClientTicket*> parts;  // of a call with several texts, one for each
  std::size_t open_parts = 0;

  // Of an input, once its bytes lie where workers find them.
  std::size_t input_bytes(std::size_t at, std::size_t limit) const {
    return inputs.empty() ? call.model->inputs[at].bytes(call.inputs[at].shape, limit).value_or(0) : inputs[at].bytes;
  }

  // Without memory: its text has no tokens, or its parts have theirs.
  static constexpr std::size_t kNoBlock = ~std::size_t{0};

  // Make it as new: of the call that was read into it before, nothing is left.
  void clear() {
    Ticket::clear();
    let_go();
  }

  // A part has no answer. The first one says why there is none, unless it is the client's own fault.
  void hear_end_of(const ClientTicket& part) {
    if (outcome != Outcome::kInTime && (is_clients_fault() || !part.is_clients_fault())) return;
    outcome = part.outcome;
    cause = part.cause;
    fault = part.fault;
    reason = part.reason;
    if (outcome != Outcome::kInTime) return;
    outcome = Outcome::kFailed;
    reason = "the worker's answer is not what it said it is";
  }
  // Of the part that came last.
  void take_stages_of(const ClientTicket& part) {
    admitted = part.admitted;
    dispatched = part.dispatched;
    started = part.started;
    finished = part.finished;
    gpu = part.gpu;
    batch = part.batch;
    batch_size = part.batch_size;
  }

  // What one large call needed is not kept for small ones.
  void trim() {
    constexpr std::size_t kKept = 1 << 16;
    for (protocol::Input& tensor : call.inputs)
      if (tensor.own_bytes.capacity() > kKept) protocol::trim(tensor.own_bytes);
    if (call.id.capacity() > kKept) protocol::trim(call.id);
    let_go();
  }
  // Of memory and of other tickets.
  void let_go() {
    from.clear();
    to.clear();
    parts.clear();
    whole = nullptr;
  }

 private:
  bool is_clients_fault() const {
    return cause == Cause::kInputs && (fault == Fault::kClient || fault == Fault::kTooLong);
  }
};

}  // namespace astrarium::front
