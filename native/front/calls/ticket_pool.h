// The tickets of a network thread, which are used again and again.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/arena.h"
#include "front/calls/client_ticket.h"

namespace astrarium::front {

class TicketPool {
 public:
  explicit TicketPool(Arena& arena) : arena_(arena) {}

  // A call is read into this one before anybody knows whether it is taken.
  ClientTicket& spare() {
    if (unused_.empty()) {
      tickets_.push_back(std::make_unique<ClientTicket>());
      tickets_.back()->number = static_cast<std::int64_t>(tickets_.size()) - 1;
      unused_.push_back(tickets_.back().get());
    }
    return *unused_.back();
  }

  // The spare one, which is in use from now on.
  ClientTicket& take() {
    ClientTicket& ticket = spare();
    unused_.pop_back();
    return ticket;
  }

  void give_back(ClientTicket& ticket) {
    if (ticket.block != ClientTicket::kNoBlock) arena_.give_back(ticket.block);
    ticket.trim();
    unused_.push_back(&ticket);
  }

 private:
  Arena& arena_;
  std::vector<std::unique_ptr<ClientTicket>> tickets_;
  std::vector<ClientTicket*> unused_;
};

}  // namespace astrarium::front
