// A row is one request of a ticket, as policies count requests: it waits, runs in a batch, and ends.
#pragma once

#include <cstdint>

#include "exchange/ticket.h"

namespace astrarium::front {

struct Row {
  Ticket* ticket;
  int index;                 // of the ticket's rows
  std::int64_t number = -1;  // in the order in which rows came to wait; one that is tried again has another
};

}  // namespace astrarium::front
