// The one message of a worker that is acted on here: a batch is done, and its model's own shapes say it all.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace astrarium::express {

class NewsScan {
 public:
  explicit NewsScan(std::string_view packet) : rest_(packet) {}

  // The number of the batch; nothing for any other message, or where it carries shapes.
  std::optional<std::int64_t> finished_batch() {
    constexpr std::string_view kStart = "\x99\xa9" "BatchDone";  // an array of nine, and its tag
    constexpr int kTimes = 5;  // received, started, computing, computed, finished
    if (rest_.substr(0, kStart.size()) != kStart) return std::nullopt;
    rest_.remove_prefix(kStart.size());
    const auto run = number();
    for (int i = 0; i < kTimes; ++i)
      if (!number()) return std::nullopt;
    const bool no_shapes = !rest_.empty() && rest_[0] == '\xc0';
    return no_shapes ? run : std::nullopt;
  }

 private:
  // A whole number that is not negative, as MessagePack writes it.
  std::optional<std::int64_t> number() {
    if (rest_.empty()) return std::nullopt;
    const auto kind = static_cast<unsigned char>(rest_[0]);
    rest_.remove_prefix(1);
    if (kind < 0x80) return kind;
    if (kind < 0xcc || kind > 0xcf) return std::nullopt;
    const std::size_t size = std::size_t{1} << (kind - 0xcc);
    if (rest_.size() < size) return std::nullopt;
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i) value = value << 8 | static_cast<unsigned char>(rest_[i]);
    rest_.remove_prefix(size);
    return static_cast<std::int64_t>(value);
  }

  std::string_view rest_;
};

inline std::optional<std::int64_t> finished_batch(std::string_view packet) {
  return NewsScan(packet).finished_batch();
}

}  // namespace astrarium::express
