// Where the answer to a call lies, for whoever writes it to its client.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "front/calls/client_ticket.h"
#include "front/calls/refusals.h"
#include "front/served_model.h"
#include "protocol/answer.h"

namespace astrarium::front {

// Each layout is there until the next. Where there is none, *refusals* hears why: the call has no answer, or the
// answers to its rows do not belong together or cannot be where they should be.
class ReplyLayouts {
 public:
  // Answers lie in *memory*.
  ReplyLayouts(char* memory, Refusals& refusals) : memory_(memory), refusals_(refusals) {}

  const protocol::ReplyLayout* of(const ClientTicket& ticket, const ServedModel& model) {
    if (ticket.outcome != Outcome::kInTime) return refusals_.ended(model.name, ticket), nullptr;
    for (const auto& row : ticket.reply_shapes)
      if (!alike(row, ticket.reply_shapes.front())) return refusals_.unequal(model.name), nullptr;
    const bool varies = !ticket.reply_shapes.empty() && !ticket.reply_shapes.front().empty();
    protocol::ReplyLayout& layout = !varies && model.reply_bytes ? model.layout : reported_by(ticket);
    layout.first = memory_ + ticket.replies;
    layout.bytes = ticket.reply_bytes;
    return fit(model, layout, ticket.rows) ? &layout : (refusals_.not_there(), nullptr);
  }

  // Of a call with several texts, each of which has its answer elsewhere.
  const protocol::ReplyLayout* of_texts(ClientTicket& whole, const ServedModel& model) {
    if (whole.outcome != Outcome::kInTime) return refusals_.ended(model.name, whole), nullptr;
    protocol::ReplyLayout joined{};
    for (ClientTicket* part : whole.parts) {
      const protocol::ReplyLayout& row = *of(*part, model);
      if (!joined.blocks.empty() && row.shapes != joined.shapes) return refusals_.unequal_texts(model.name), nullptr;
      joined.shapes = row.shapes;
      joined.blocks.push_back(row.first);
      joined.sizes.insert(joined.sizes.end(), row.sizes.begin(), row.sizes.end());
    }
    layout_ = std::move(joined);
    return &layout_;
  }

 private:
  // From the shapes that the worker reported.
  protocol::ReplyLayout& reported_by(const ClientTicket& ticket) {
    const std::size_t count = ticket.reply_shapes.empty() ? 0 : ticket.reply_shapes.front().size();
    layout_.shapes.resize(count);
    layout_.sizes.clear();
    layout_.blocks.clear();
    for (std::size_t at = 0; at < count; ++at) layout_.shapes[at] = ticket.reply_shapes.front()[at].shape;
    for (const auto& row : ticket.reply_shapes)
      for (const Written& tensor : row) layout_.sizes.push_back(tensor.bytes);
    return layout_;
  }

  static bool alike(const std::vector<Written>& row, const std::vector<Written>& other) {
    return std::equal(row.begin(), row.end(), other.begin(), other.end(),
                      [](const Written& a, const Written& b) { return a.shape == b.shape; });
  }

  char* memory_;
  Refusals& refusals_;
  protocol::ReplyLayout layout_{nullptr, 0, {}, {}};
};

}  // namespace astrarium::front
