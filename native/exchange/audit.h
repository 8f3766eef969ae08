// Where every open call is: in a ring, or with who decides; and that the admission counts as many. It is exact however
// busy the threads are, since what is compared is read together.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <vector>

#include "exchange/exchange.h"

namespace astrarium::front {

// Calls that an origin's thread has in its books as open, less those that wait for tokens, and those that it has sent
// and not had back.
inline std::int64_t astray_at(const Origin& origin) {
  return origin.counted.read([&] {
    return origin.open() - origin.in_text.get() -
           static_cast<std::int64_t>(origin.sent.pushed() - origin.back.popped());
  });
}

// Calls that were taken out of the rings to be decided on and did not come back. Nobody decides meanwhile.
inline std::int64_t taken_to_decide(const Exchange& exchange) {
  std::int64_t missing = 0;
  for (const auto& origin : exchange.origins)
    missing += static_cast<std::int64_t>(origin->sent.popped() - origin->back.pushed());
  return missing;
}

// Calls that the admission counts as open beyond those of all books; nothing where a thread was letting somebody in or
// out whenever we looked: what is amiss for good shows at a later time.
inline std::optional<std::int64_t> admitted_astray(const Exchange& exchange, std::int64_t open_in_python) {
  constexpr int kLooks = 100;
  for (int look = 0; look < kLooks; ++look) {
    std::vector<std::uint64_t> before;
    for (const auto& origin : exchange.origins) before.push_back(origin->admitted.begin_read());
    std::int64_t beyond = exchange.admission.open() - open_in_python;
    for (const auto& origin : exchange.origins) beyond -= origin->open();
    bool unchanged = true;
    for (std::size_t i = 0; i < before.size(); ++i) unchanged &= exchange.origins[i]->admitted.is_unchanged(before[i]);
    if (unchanged) return beyond;
  }
  return std::nullopt;
}

// How many calls are not where the books say that they are. *held*: by who decides, and nobody decides meanwhile;
// *open_in_python*: those that Python has read.
inline std::int64_t astray(const Exchange& exchange, std::int64_t held, std::int64_t open_in_python) {
  std::int64_t astray_calls = std::abs(taken_to_decide(exchange) - held);
  for (std::size_t i = 0; i + 1 < exchange.origins.size(); ++i)
    astray_calls += std::abs(astray_at(*exchange.origins[i]));  // the last is Python's
  return astray_calls + std::abs(admitted_astray(exchange, open_in_python).value_or(0));
}

}  // namespace astrarium::front
