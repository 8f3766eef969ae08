// A call with several texts: each is as long as it is, and a ticket of its own, a part of the *whole*. The client has
// its answer with the last part.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "front/calls/text_calls.h"
#include "front/calls/ticket_pool.h"

namespace astrarium::front {

class TextTickets {
 public:
  TextTickets(TicketPool& pool, TextCalls& texts) : pool_(pool), texts_(texts) {}

  // Lets each text wait for its tokens.
  void put(ClientTicket& whole, std::vector<std::vector<std::string>> texts, Time now) {
    if (texts.size() == 1) return texts_.put(whole, std::move(texts.front()), now);
    whole.block = ClientTicket::kNoBlock;
    whole.outcome = Outcome::kInTime;  // until a part says otherwise
    whole.open_parts = texts.size();
    for (std::vector<std::string>& text : texts) {
      ClientTicket& part = pool_.take();
      begin_part(whole, part);
      whole.parts.push_back(&part);
      texts_.put(part, std::move(text), now);
    }
  }

  // A part has ended; returns whether all have, and the whole with them.
  static bool end_part(const ClientTicket& part, bool has_answer) {
    ClientTicket& whole = *part.whole;
    if (!has_answer) whole.hear_end_of(part);
    if (--whole.open_parts > 0) return false;
    if (whole.outcome == Outcome::kInTime) whole.take_stages_of(part);
    return true;
  }

  void give_back(ClientTicket& whole) {
    for (ClientTicket* part : whole.parts) pool_.give_back(*part);
    pool_.give_back(whole);
  }

 private:
  static void begin_part(ClientTicket& whole, ClientTicket& part) {
    part.clear();
    part.call.clear();
    part.call.model = whole.call.model;
    part.call.timeout_us = whole.call.timeout_us;
    part.call.patience = whole.call.patience;
    part.whole = &whole;
    part.rows = 1;
    part.origin = whole.origin;
    part.model = whole.model;
    part.application = whole.application;
    part.received = whole.received;
    part.deadline = whole.deadline;
    part.cost = whole.cost;
  }

  TicketPool& pool_;
  TextCalls& texts_;
};

}  // namespace astrarium::front
