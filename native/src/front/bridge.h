// A bridge lets Python decide on calls that network threads have read: their tickets are handed over in batches, and
// go home when they have ended.
#pragma once

#include <stdexcept>
#include <vector>

#include "clock.h"
#include "exchange.h"

namespace astrarium::front {

// One thread uses it.
class Bridge {
 public:
  explicit Bridge(Exchange& exchange) : exchange_(exchange) {}

  // All tickets that have come. The exchange's bell is rung when there are more.
  std::vector<Ticket*> pop() {
    std::vector<Ticket*> found;
    exchange_.bell.wakes();
    exchange_.bell.sleeps();
    for (const auto& origin : exchange_.origins)
      for (Ticket* ticket = nullptr; origin->sent.pop(ticket);) found.push_back(ticket);
    return found;
  }

  // It has an outcome, and no worker writes into its block any more.
  void end(Ticket& ticket) {
    if (ticket.outcome == Outcome::kInTime) exchange_.admission.limit(ticket.model).answered();
    Origin& origin = *exchange_.origins[static_cast<std::size_t>(ticket.origin)];
    if (!origin.back.push(&ticket)) throw std::logic_error("more tickets than may be open");
    origin.bell.ring();
  }

 private:
  Exchange& exchange_;
};

}  // namespace astrarium::front
