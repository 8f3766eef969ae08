// Tensors in regions, the memory of clients: inputs are copied from there, and outputs are written there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "exchange/exchange.h"
#include "front/calls/client_ticket.h"
#include "front/calls/refusals.h"
#include "front/served_model.h"
#include "protocol/answer.h"

namespace astrarium::front {

class RegionTensors {
 public:
  // *refusals* hears why an output does not fit.
  RegionTensors(Exchange& exchange, Refusals& refusals) : exchange_(exchange), refusals_(refusals) {}

  // Takes hold of the regions that a call names; false where somebody else has to explain what is wrong with them.
  bool take_hold(ClientTicket& ticket, const ServedModel& model) const {
    if (!ticket.call.has_regions()) return true;
    for (const protocol::Input& tensor : ticket.call.inputs)
      if (!take_part(ticket, tensor.place, ticket.from)) return false;
    for (const protocol::Wanted& wanted : ticket.call.outputs) {
      const std::size_t rows = static_cast<std::size_t>(ticket.rows);
      if (!take_part(ticket, wanted.place, ticket.to)) return false;
      if (wanted.place.is_given() && !ticket.to.back().region->is_writable()) return false;
      if (wanted.place.is_given() && model.reply_bytes && wanted.place.size < rows * model.layout.sizes[wanted.output])
        return false;
    }
    drop_if_none(ticket.from);
    drop_if_none(ticket.to);
    return true;
  }

  // Copies the inputs that lie in regions to where workers find them; false where a region has become shorter.
  bool read(const ClientTicket& ticket) const {
    char* to = exchange_.memory + ticket.block;
    for (std::size_t at = 0; at < ticket.from.size(); ++at) {
      const RegionPart& part = ticket.from[at];
      if (part.region != nullptr && !part.region->read(part.at, to, part.size)) return false;
      to += protocol::aligned(ticket.input_bytes(at, exchange_.size));
    }
    return true;
  }

  // Writes the outputs of an answered call that belong in regions there; false where one does not take it.
  bool write(const ClientTicket& ticket, const protocol::ReplyLayout& layout) {
    for (std::size_t at = 0; at < ticket.to.size(); ++at)
      if (ticket.to[at].region != nullptr && !write(ticket, layout, ticket.call.outputs[at], ticket.to[at]))
        return false;
    return true;
  }

 private:
  bool take_part(const ClientTicket& ticket, const protocol::RegionPlace& place, std::vector<RegionPart>& parts) const {
    parts.emplace_back();
    if (!place.is_given()) return true;
    parts.back() = exchange_.regions.part(ticket.owner, place.region, place.at, place.size);
    return parts.back().region != nullptr;
  }
  static void drop_if_none(std::vector<RegionPart>& parts) {
    if (std::all_of(parts.begin(), parts.end(), [](const RegionPart& part) { return part.region == nullptr; }))
      parts.clear();
  }

  bool write(const ClientTicket& ticket, const protocol::ReplyLayout& layout, const protocol::Wanted& wanted,
             const RegionPart& part) {
    const std::string_view output = ticket.call.model->outputs[wanted.output].name;
    const std::size_t size = layout.size_of_all(ticket.call.rows, wanted.output);
    if (size > part.size) return refusals_.too_small(output, wanted.place.region, part.size, size), false;
    std::size_t at = part.at;
    for (std::int64_t row = 0; row < ticket.call.rows; ++row) {
      const std::string_view data = layout.data(row, wanted.output);
      if (!part.region->write(at, data)) return refusals_.shortened(output, wanted.place.region), false;
      at += data.size();
    }
    return true;
  }

  Exchange& exchange_;
  Refusals& refusals_;
};

}  // namespace astrarium::front
