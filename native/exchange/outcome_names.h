// The words for outcomes and their causes, as Python and metrics know them.
#pragma once

#include <string_view>

#include "exchange/ticket.h"

namespace astrarium::front {

inline std::string_view outcome_name(int outcome) {
  constexpr std::string_view kNames[] = {"open", "in_time", "late", "dropped", "failed"};
  return kNames[outcome];
}

inline constexpr std::string_view kCauseNames[kCauses] = {
    "",       "expired", "sacrificed", "unserved", "worker_lost", "model_error", "policy_error", "quarantined",
    "inputs", "other"};
inline std::string_view name_of(Cause cause) { return kCauseNames[static_cast<std::size_t>(cause)]; }

}  // namespace astrarium::front
