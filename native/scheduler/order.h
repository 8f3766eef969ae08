// Orders to workers, as serving/live/messages.py describes them: MessagePack arrays, one to a packet.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "exchange/row.h"
#include "messages/pack_writer.h"

namespace astrarium::front {

using protocol::PackWriter;

// One member of a batch as workers read it: six little-endian numbers.
inline void append_member(std::string& out, const Row& row) {
  static_assert(std::endian::native == std::endian::little);
  const Ticket& ticket = *row.ticket;
  const std::size_t reply = ticket.replies + static_cast<std::size_t>(row.index) * ticket.reply_bytes;
  const std::int64_t member[] = {
      static_cast<std::int64_t>(ticket.block),       ticket.rows,       row.index, static_cast<std::int64_t>(reply),
      static_cast<std::int64_t>(ticket.reply_bytes), ticket.application};
  out.append(reinterpret_cast<const char*>(member), sizeof member);
}
inline constexpr std::size_t kMemberBytes = 48;

inline void append_shapes(PackWriter& pack, const std::vector<Written>& shapes) {
  if (shapes.empty()) return pack.nil();
  pack.array(shapes.size());
  for (const Written& tensor : shapes) {
    pack.array(2);
    pack.array(tensor.shape.size());
    for (const std::int64_t dimension : tensor.shape) pack.number(static_cast<std::uint64_t>(dimension));
    pack.number(tensor.bytes);
  }
}

// A batch that runs is stopped, one that waits is skipped; its GPU recovers for so long.
inline std::string cancel_batch(std::int64_t tag, Time recovery) {
  std::string out;
  PackWriter pack(out);
  pack.array(3);
  pack.text("CancelBatch");
  pack.number(static_cast<std::uint64_t>(tag));
  pack.number(static_cast<std::uint64_t>(recovery));
  return out;
}

inline std::string run_batch(std::int64_t tag, int model, const std::vector<Row>& rows, Time start) {
  std::string out;
  out.reserve(48 + kMemberBytes * rows.size());
  PackWriter pack(out);
  pack.array(6);
  pack.text("RunBatch");
  pack.number(static_cast<std::uint64_t>(tag));
  pack.number(static_cast<std::uint64_t>(model));
  pack.binary(kMemberBytes * rows.size());
  for (const Row& row : rows) append_member(out, row);
  pack.number(static_cast<std::uint64_t>(start));
  bool own = false;
  for (const Row& row : rows) own |= !row.ticket->inputs.empty();
  if (!own) return pack.nil(), out;
  pack.array(rows.size());
  for (const Row& row : rows) append_shapes(pack, row.ticket->inputs);
  return out;
}

}  // namespace astrarium::front
