// Where a ticket's tensors lie in shared memory: its inputs, placed at once or as they arrive, and after them the
// places for its answers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>
#include <vector>

#include "exchange/exchange.h"
#include "front/calls/client_ticket.h"
#include "front/calls/incoming.h"
#include "front/served_model.h"

namespace astrarium::front {

class TicketMemory {
 public:
  explicit TicketMemory(Exchange& exchange) : exchange_(exchange) {}

  // Copies the tensors to where workers find them; false where there is no memory for them now.
  bool place(ClientTicket& ticket, const ServedModel& model) {
    if (!take_block(ticket)) return false;
    ticket.call.place(exchange_.memory + ticket.block);
    note_inputs(ticket, model);
    return true;
  }

  // What a call holds while it arrives is counted by its block; one with a long id or much JSON is kept as it comes.
  static bool is_light(const protocol::Call& call) {
    constexpr std::size_t kMost = 4096;
    std::size_t size = call.id.size();
    for (const protocol::Input& tensor : call.inputs) size += tensor.own_bytes.size();
    return size <= kMost;
  }

  // Gives the tensors of a call their places, which were read as if they lay in *area*; false where there is no memory.
  // Clients may send slowly: only so much of the memory waits for them.
  bool begin_arrival(ClientTicket& ticket, const ServedModel& model, std::string_view area, Incoming& incoming) {
    if (!take_arriving(ticket)) return false;
    incoming.places = places_of(ticket, area);
    note_inputs(ticket, model);
    incoming.ticket = &ticket;
    return true;
  }
  ClientTicket& end_arrival(Incoming& incoming) {
    ClientTicket& ticket = *std::exchange(incoming.ticket, nullptr);
    exchange_.arriving.fetch_sub(block_size(ticket, ticket.replies - ticket.block), std::memory_order_relaxed);
    return ticket;
  }

 private:
  bool take_block(ClientTicket& ticket) {
    const std::size_t inputs = ticket.call.block_bytes();
    const std::int64_t block =
        exchange_.arena.take(inputs + static_cast<std::size_t>(ticket.rows) * ticket.reply_bytes);
    if (block < 0) return false;
    ticket.block = static_cast<std::size_t>(block);
    ticket.replies = ticket.block + inputs;
    return true;
  }

  static void note_inputs(ClientTicket& ticket, const ServedModel& model) {
    if (!model.fixed_inputs)
      for (const protocol::Input& tensor : ticket.call.inputs) ticket.inputs.push_back({tensor.shape, tensor.bytes()});
    for (protocol::Input& tensor : ticket.call.inputs) tensor.data = {};  // it lay in the request
  }

  bool take_arriving(ClientTicket& ticket) {
    const std::size_t bytes = block_size(ticket, ticket.call.block_bytes());
    if (exchange_.arriving.fetch_add(bytes, std::memory_order_relaxed) + bytes <= exchange_.arena.size() / 4 &&
        take_block(ticket))
      return true;
    exchange_.arriving.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  static std::size_t block_size(const ClientTicket& ticket, std::size_t inputs) {
    return Arena::rounded(inputs + static_cast<std::size_t>(ticket.rows) * ticket.reply_bytes);
  }

  // Where tensors that were read as if they lay in *area* go, in their order there; those that came as JSON go there
  // now.
  std::vector<Incoming::Place> places_of(const ClientTicket& ticket, std::string_view area) const {
    std::vector<std::pair<const char*, Incoming::Place>> by_source;
    char* to = exchange_.memory + ticket.block;
    for (const protocol::Input& tensor : ticket.call.inputs) {
      const bool follows = tensor.data.data() >= area.data() && tensor.data.data() < area.data() + area.size();
      if (!follows) std::copy(tensor.data.begin(), tensor.data.end(), to);
      else if (!tensor.data.empty()) by_source.push_back({tensor.data.data(), {to, tensor.data.size()}});
      to = protocol::Call::clear_gap(to, tensor.data.size());
    }
    std::sort(by_source.begin(), by_source.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Incoming::Place> places;
    for (const auto& [_, place] : by_source) places.push_back(place);
    return places;
  }

  Exchange& exchange_;
};

}  // namespace astrarium::front
