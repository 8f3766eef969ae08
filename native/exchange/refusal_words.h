// What the client of a call that is not let in is told: the same, whether a network thread has read it or Python.
#pragma once

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

#include "common/rounded_duration.h"
#include "common/units.h"
#include "exchange/admission.h"
#include "exchange/tally.h"

namespace astrarium::front {

// A call that the admission has judged.
struct JudgedCall {
  int model;
  std::string_view name;  // of the model
  const CallCost& cost;
  Time objective, received, judged;
};

inline RefusedFor refused_for(Verdict verdict) {
  if (verdict == Verdict::kTooLate) return RefusedFor::kDeadline;
  return verdict == Verdict::kClosed || verdict == Verdict::kAway ? RefusedFor::kUnavailable : RefusedFor::kOverloaded;
}

inline void append_too_late(std::string& text, const JudgedCall& call) {
  text += "model ";
  text += call.name;
  text += " cannot answer within " + rounded_duration(call.objective) + ": one request";
  if (call.cost.length) text += " of length " + std::to_string(call.cost.length);
  text += " alone takes " + rounded_duration(call.cost.needed) + ", and " +
          rounded_duration(call.judged - call.received) + " had passed";
}

inline void append_backlog(std::string& text, const JudgedCall& call, std::int64_t open) {
  char within[32];
  std::snprintf(within, sizeof within, "%g", static_cast<double>(call.objective) / static_cast<double>(kMillisecond));
  text += "overloaded: model ";
  text += call.name;
  text += " has " + std::to_string(open) + " calls open, more than can be answered in " + within + " ms";
}

inline void append_full(std::string& text, std::int64_t open) {
  text += "overloaded: " + std::to_string(open) + " calls are open already, the most that may be";
}

inline void append_away(std::string& text, const JudgedCall& call, Time back_at) {
  text += "model ";
  text += call.name;
  text += ": no worker is up; one is expected in " + rounded_duration(std::max<Time>(back_at - call.judged, 0));
}

inline void append_closed(std::string& text, const JudgedCall& call) {
  text += "model ";
  text += call.name;
  text += " took no calls when this one had arrived: the server drains, or no worker is up";
}

// Only verdicts that the admission itself gives have words here.
inline void append_words(std::string& text, Verdict verdict, const JudgedCall& call, const Admission& admission) {
  switch (verdict) {
    case Verdict::kClosed: return append_closed(text, call);
    case Verdict::kTooLate: return append_too_late(text, call);
    case Verdict::kFull: return append_full(text, admission.open());
    case Verdict::kAway: return append_away(text, call, admission.back_at());
    case Verdict::kBacklog: return append_backlog(text, call, admission.open(call.model));
    default: throw std::invalid_argument("verdict: expected one by which an admission refuses a call");
  }
}

}  // namespace astrarium::front
