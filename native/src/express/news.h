// The messages of a worker that are acted on here: how a batch ended. MessagePack, as serving/live/messages.py says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "model.h"

namespace astrarium::express {

struct Written {
  Shape shape;
  std::size_t bytes;
};

struct BatchDone {
  std::int64_t run;
  std::optional<std::vector<std::vector<Written>>> shapes;  // by member; nothing: the model's own say it all
  std::int64_t received = 0, started = 0, computing = 0, computed = 0, finished = 0;
  std::vector<std::int64_t> own_times{};  // what each member would have taken alone, where the backend knows
};

struct BatchBroken {
  std::int64_t run, started, finished;
  std::string error;
};

class NewsScan {
 public:
  explicit NewsScan(std::string_view packet) : rest_(packet) {}

  // Nothing for any other message.
  std::optional<BatchDone> batch_done() {
    constexpr std::string_view kStart = "\x99\xa9" "BatchDone";  // an array of nine, and its tag
    if (!begins_with(kStart)) return std::nullopt;
    BatchDone done{number(), {}};
    for (std::int64_t* time : {&done.received, &done.started, &done.computing, &done.computed, &done.finished}) *time = number();
    if (!nothing()) done.shapes = list([this] { return member(); });
    done.own_times = list([this] { return number(); });
    return good_ ? std::optional(std::move(done)) : std::nullopt;
  }

  std::optional<BatchBroken> batch_broken() {
    constexpr std::string_view kStart = "\x95\xab" "BatchBroken";
    if (!begins_with(kStart)) return std::nullopt;
    BatchBroken broken{number(), number(), number(), {}};
    broken.error = text();
    return good_ ? std::optional(std::move(broken)) : std::nullopt;
  }

 private:
  bool begins_with(std::string_view start) {
    if (rest_.substr(0, start.size()) != start) return false;
    rest_.remove_prefix(start.size());
    return true;
  }

  bool nothing() { return begins_with("\xc0"); }

  std::vector<Written> member() {
    return list([this] {
      if (size() != 2) good_ = false;
      Shape shape = list([this] { return number(); });
      return Written{std::move(shape), static_cast<std::size_t>(number())};
    });
  }

  template <class Read>
  std::vector<std::invoke_result_t<Read>> list(Read read) {
    std::vector<std::invoke_result_t<Read>> found;
    for (std::uint64_t left = size(); left > 0 && good_; --left) found.push_back(read());
    return found;
  }

  unsigned char next() {
    if (rest_.empty()) good_ = false;
    if (!good_) return 0;
    const auto byte = static_cast<unsigned char>(rest_[0]);
    rest_.remove_prefix(1);
    return byte;
  }

  std::uint64_t bytes(int count) {
    std::uint64_t value = 0;
    for (int i = 0; i < count; ++i) value = value << 8 | next();
    return value;
  }

  // Of an array.
  std::uint64_t size() {
    const unsigned char kind = next();
    if (kind >> 4 == 9) return kind & 15;
    if (kind == 0xdc) return bytes(2);
    if (kind == 0xdd) return bytes(4);
    good_ = false;
    return 0;
  }

  std::string_view text() {
    const unsigned char kind = next();
    const std::uint64_t length = kind >> 5 == 5 ? kind & 31 : kind >= 0xd9 && kind <= 0xdb ? bytes(1 << (kind - 0xd9)) : ~std::uint64_t{0};
    if (length > rest_.size()) good_ = false;
    if (!good_) return {};
    const std::string_view found = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return found;
  }

  // A whole number that is not negative.
  std::int64_t number() {
    const unsigned char kind = next();
    if (kind < 0x80) return kind;
    if (kind >= 0xcc && kind <= 0xcf) return static_cast<std::int64_t>(bytes(1 << (kind - 0xcc)));
    good_ = false;
    return 0;
  }

  std::string_view rest_;
  bool good_ = true;
};

}  // namespace astrarium::express
