// What a network thread counts of its calls, and what the admission hears of those that have ended.
#pragma once

#include <atomic>
#include <cstddef>

#include "exchange/exchange.h"
#include "front/calls/client_ticket.h"
#include "front/served_model.h"

namespace astrarium::front {

class CallBooks {
 public:
  CallBooks(Exchange& exchange, Origin& origin) : exchange_(exchange), origin_(origin) {}

  void accepted(int model) { tally(model).accepted.add(1); }
  void refused(int model, RefusedFor kind) { tally(model).refused[static_cast<std::size_t>(kind)].add(1); }
  // A call that we had promised to answer has none.
  void declined(int model) { tally(model).declined.add(1); }

  // A call leaves where it was, which *leave* does, the books and the admission.
  template <class Leave>
  void end(const ClientTicket& ticket, const ServedModel& model, bool has_answer, Time now, Leave leave) {
    const SequenceWrite let_out(origin_.admitted);
    {
      const SequenceWrite counting(origin_.counted);
      note(ticket, model, has_answer, now);
      leave();
    }
    exchange_.admission.ended(ticket.model, ticket.cost.weight, ticket.objective());
  }

 private:
  ModelTally& tally(int model) { return origin_.tallies[static_cast<std::size_t>(model)]; }

  void note(const ClientTicket& ticket, const ServedModel& model, bool has_answer, Time now) {
    Outcome outcome = ticket.outcome;
    Cause cause = ticket.cause;
    if (outcome == Outcome::kInTime && !has_answer) {  // as its client knows
      outcome = Outcome::kFailed;
      cause = Cause::kModelError;
    }
    if (outcome == Outcome::kInTime && now > ticket.deadline) outcome = Outcome::kLate;
    tally(ticket.model).call_ended(outcome, cause, now - ticket.received);
    if (outcome == Outcome::kDropped && ticket.cause != Cause::kUnserved && model.was_promised(ticket.call))
      declined(ticket.model);
    if (has_answer) note_answer(ticket, outcome == Outcome::kInTime, now);
  }

  void note_answer(const ClientTicket& ticket, bool in_time, Time now) {
    tally(ticket.model).answered(ticket.received, ticket.started, now, ticket.rows);
    exchange_.admission.answered(ticket.model,
                                 now - ticket.planned_end - exchange_.response.load(std::memory_order_relaxed));
    origin_.last_calls.add({ticket.model, ticket.gpu, ticket.batch, ticket.batch_size, in_time, ticket.received,
                            ticket.admitted, ticket.dispatched, ticket.started, ticket.finished, now});
  }

  Exchange& exchange_;
  Origin& origin_;
};

}  // namespace astrarium::front
