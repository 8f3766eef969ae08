// The native twin of each policy, by its name.
#pragma once

#include <memory>
#include <stdexcept>

#include "policies/live_twins.h"
#include "policies/policy.h"
#include "policies/rivals/clipper.h"
#include "policies/rivals/clockwork.h"
#include "policies/rivals/nexus.h"
#include "policies/rivals/shepherd.h"
#include "policies/rivals/turbo.h"

namespace astrarium {

inline std::unique_ptr<Policy> make_policy(const Setup& setup, const Parameters& p) {
  if (auto live = make_live_policy(setup, p)) return live;
  if (p.policy == "clipper") return make_clipper(setup, p);
  if (p.policy == "clockwork") return make_clockwork(setup, p);
  if (p.policy == "nexus") return make_nexus(setup, p);
  if (p.policy == "shepherd") return make_shepherd(setup, p);
  if (p.policy == "turbo") return make_turbo(setup, p);
  throw std::invalid_argument("no native twin of policy " + p.policy);
}

}  // namespace astrarium
