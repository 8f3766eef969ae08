// The messages of a worker that are acted on here: how a batch ended. MessagePack, as serving/live/messages.py says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "messages/pack_reader.h"
#include "tensors/model.h"

namespace astrarium::protocol {

struct Written {
  Shape shape;
  std::size_t bytes;
};

// Shapes and bytes of one member's tensors.
inline std::vector<Written> read_shapes(PackReader& pack) {
  return pack.list([&pack] {
    if (pack.size() != 2) pack.refuse();
    Shape shape = pack.list([&pack] { return pack.number(); });
    return Written{std::move(shape), static_cast<std::size_t>(pack.number())};
  });
}

struct BatchDone {
  std::int64_t tag;
  std::optional<std::vector<std::vector<Written>>> shapes;  // by member; nothing: the model's own say it all
  std::int64_t received = 0, started = 0, computing = 0, computed = 0, finished = 0;
  std::vector<std::int64_t> own_times{};  // what each member would have taken alone, where the backend knows
};

struct BatchBroken {
  std::int64_t tag, started, finished;
  std::string error;
};

struct BatchCancelled {
  std::int64_t tag, started, stopped;
};

class NewsScan {
 public:
  explicit NewsScan(std::string_view packet) : pack_(packet) {}

  // Nothing for any other message.
  std::optional<BatchDone> batch_done() {
    constexpr std::string_view kStart =
        "\x99\xa9"
        "BatchDone";  // an array of nine, and its name
    if (!pack_.begins_with(kStart)) return std::nullopt;
    BatchDone done{pack_.number(), {}};
    for (std::int64_t* time : {&done.received, &done.started, &done.computing, &done.computed, &done.finished})
      *time = pack_.number();
    if (!pack_.nil()) done.shapes = pack_.list([this] { return read_shapes(pack_); });
    done.own_times = pack_.list([this] { return pack_.number(); });
    return pack_.good() ? std::optional(std::move(done)) : std::nullopt;
  }

  std::optional<BatchBroken> batch_broken() {
    constexpr std::string_view kStart =
        "\x95\xab"
        "BatchBroken";
    if (!pack_.begins_with(kStart)) return std::nullopt;
    BatchBroken broken{pack_.number(), pack_.number(), pack_.number(), {}};
    broken.error = pack_.text();
    return pack_.good() ? std::optional(std::move(broken)) : std::nullopt;
  }

  std::optional<BatchCancelled> batch_cancelled() {
    constexpr std::string_view kStart =
        "\x94\xae"
        "BatchCancelled";
    if (!pack_.begins_with(kStart)) return std::nullopt;
    const BatchCancelled cancelled{pack_.number(), pack_.number(), pack_.number()};
    return pack_.good() ? std::optional(cancelled) : std::nullopt;
  }

 private:
  PackReader pack_;
};

}  // namespace astrarium::protocol
