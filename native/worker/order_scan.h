// The orders that a worker acts on without Python: run a batch, stop one. serving/live/messages.py describes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "messages/news.h"
#include "messages/pack_reader.h"
#include "tensors/batch_copy.h"

namespace astrarium::worker {

using Time = std::int64_t;
using protocol::Member;
using protocol::Written;

struct RunBatch {
  std::int64_t tag = 0, model = 0;
  std::vector<Member> members;
  Time start = 0;                            // not before
  std::vector<std::vector<Written>> shapes;  // by member, as far as the model's own do not say it all
};

struct CancelBatch {
  std::int64_t tag;
  Time recovery;
};

class OrderScan {
 public:
  explicit OrderScan(std::string_view packet) : pack_(packet) {}

  // Nothing for any other message.
  std::optional<RunBatch> run_batch() {
    constexpr std::string_view kStart =
        "\x96\xa8"
        "RunBatch";  // an array of six, and its name
    if (!pack_.begins_with(kStart)) return std::nullopt;
    RunBatch order;
    order.tag = pack_.number();
    order.model = pack_.number();
    const std::string_view members = pack_.binary();
    if (members.size() % sizeof(Member) != 0) return std::nullopt;
    order.members = protocol::unpacked(members);
    order.start = pack_.number();
    if (!pack_.nil()) order.shapes = pack_.list([this] { return of_member(); });
    const bool shapes_fit = order.shapes.empty() || order.shapes.size() == order.members.size();
    return pack_.good() && shapes_fit && order.start < kLatest ? std::optional(std::move(order)) : std::nullopt;
  }

  // When a ping was sent.
  std::optional<Time> ping() {
    constexpr std::string_view kStart =
        "\x92\xa4"
        "Ping";
    if (!pack_.begins_with(kStart)) return std::nullopt;
    const Time sent = pack_.number();
    return pack_.good() ? std::optional(sent) : std::nullopt;
  }

  std::optional<CancelBatch> cancel_batch() {
    constexpr std::string_view kStart =
        "\x93\xab"
        "CancelBatch";
    if (!pack_.begins_with(kStart)) return std::nullopt;
    const CancelBatch order{pack_.number(), pack_.number()};
    return pack_.good() && order.recovery < kLatest ? std::optional(order) : std::nullopt;
  }

 private:
  static constexpr Time kLatest = Time{1} << 61;  // what is added to a time does not go beyond what a number holds

  std::vector<Written> of_member() { return pack_.nil() ? std::vector<Written>() : protocol::read_shapes(pack_); }

  protocol::PackReader pack_;
};

}  // namespace astrarium::worker
