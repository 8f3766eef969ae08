// The quarantine knows inputs that have broken a worker alone. Calls with the same bytes are refused for a while, so
// that one client who tries again and again breaks no further worker.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/rounded_duration.h"
#include "common/siphash.h"
#include "exchange/ticket.h"

namespace astrarium::front {

struct QuarantinedInput {
  int model;
  std::uint64_t digest;
  std::uint64_t sample;  // of a few bytes of it
  Time since, until;
  std::string reason;  // what it did

  std::string reason_at(Time now) const {
    return reason + "; the same input is refused for another " + rounded_duration(until - now);
  }
};

class Quarantine {
 public:
  static constexpr Time kLasts = 600'000 * kMillisecond;
  static constexpr std::size_t kMost = 1000;  // of a model; then the oldest is let out

  // *memory* is where tickets have their blocks; without it nothing is ever held.
  explicit Quarantine(const char* memory) : memory_(memory) {
    std::random_device random;
    const auto word = [&random] { return static_cast<std::uint64_t>(random()) << 32 | random(); };
    key_ = {word(), word()};
  }

  void add(const Ticket& ticket, std::string reason, Time now) {
    if (memory_ == nullptr) return;
    auto& entries = of(ticket.model);
    if (find(ticket, now) != nullptr) return;
    entries.push_back({ticket.model, digest(ticket), sample(ticket), now, now + kLasts, std::move(reason)});
    if (entries.size() > kMost) entries.pop_front();
  }

  // The entry that a call's inputs are held by, or nothing. Only inputs whose sample is known are read as a whole:
  // others cost next to nothing.
  const QuarantinedInput* find(const Ticket& ticket, Time now) {
    if (static_cast<std::size_t>(ticket.model) >= models_.size() || of(ticket.model).empty()) return nullptr;
    auto& entries = of(ticket.model);
    while (!entries.empty() && entries.front().until <= now) entries.pop_front();
    const std::uint64_t sample_of_call = sample(ticket);
    const auto same_sample = std::find_if(
        entries.begin(), entries.end(), [&](const QuarantinedInput& entry) { return entry.sample == sample_of_call; });
    if (same_sample == entries.end()) return nullptr;
    const std::uint64_t whole_digest = digest(ticket);
    const auto match = std::find_if(same_sample, entries.end(),
                                    [&](const QuarantinedInput& entry) { return entry.digest == whole_digest; });
    return match == entries.end() ? nullptr : &*match;
  }

  bool has_any(int model) { return !of(model).empty(); }

  // Lets all inputs of a model out; returns how many there were.
  std::size_t release(int model) {
    const std::size_t count = of(model).size();
    of(model).clear();
    return count;
  }

  std::vector<QuarantinedInput> all(Time now) const {
    std::vector<QuarantinedInput> entries;
    for (const auto& of_model : models_)
      std::copy_if(of_model.begin(), of_model.end(), std::back_inserter(entries),
                   [now](const QuarantinedInput& entry) { return entry.until > now; });
    return entries;
  }

 private:
  static constexpr std::size_t kSamples = 16;

  std::deque<QuarantinedInput>& of(int model) {
    if (models_.size() <= static_cast<std::size_t>(model)) models_.resize(static_cast<std::size_t>(model) + 1);
    return models_[static_cast<std::size_t>(model)];
  }

  // Blocks are the same where inputs are: what lies between tensors is zero.
  std::uint64_t digest(const Ticket& ticket) const {
    const std::size_t size = ticket.replies - ticket.block;
    return SipHash(key_).of(memory_ + ticket.block, size) ^ shape_of(ticket);
  }

  // Words from all over the block.
  std::uint64_t sample(const Ticket& ticket) const {
    const std::size_t size = ticket.replies - ticket.block, words = size / 8;
    std::array<std::uint64_t, kSamples + 1> words_read{};
    words_read[kSamples] = size;
    for (std::size_t i = 0; i < std::min(kSamples, words); ++i)
      std::memcpy(&words_read[i], memory_ + ticket.block + 8 * (words <= kSamples ? i : i * words / kSamples), 8);
    return SipHash(key_).of(reinterpret_cast<const char*>(words_read.data()), sizeof words_read);
  }

  std::uint64_t shape_of(const Ticket& ticket) const {
    std::vector<std::int64_t> numbers{ticket.rows};
    for (const Written& tensor : ticket.inputs) numbers.insert(numbers.end(), tensor.shape.begin(), tensor.shape.end());
    return SipHash(key_).of(reinterpret_cast<const char*>(numbers.data()), 8 * numbers.size());
  }

  const char* memory_;
  SipKey key_;
  std::vector<std::deque<QuarantinedInput>> models_;
};

}  // namespace astrarium::front
