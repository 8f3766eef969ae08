// The native twins that can decide on the wall clock too: they know GPUs that leave and join, and cancel no batch.
#pragma once

#include <memory>
#include <utility>

#include "policies/astrarium/astrarium.h"
#include "policies/live_policy.h"
#include "policies/orloj/orloj.h"
#include "policies/policy.h"
#include "policies/window.h"

namespace astrarium {

// Nothing where the policy has none.
inline std::unique_ptr<Policy> make_live_policy(const Setup& setup, const Parameters& p) {
  if (p.policy == "deferred") return make_window(setup, Opens::kDeferred, p);
  if (p.policy == "eager") return make_window(setup, Opens::kEager, p);
  if (p.policy == "timeout") return make_window(setup, Opens::kTimeout, p);
  if (p.policy == "astrarium") return make_astrarium(setup, p);
  if (p.policy == "orloj") return make_orloj(setup, p);
  return nullptr;
}

// Who decides as these parameters say.
inline MakeDecider live_twin(Parameters parameters) {
  return [parameters = std::move(parameters)](const Setup& setup) {
    return std::make_unique<LivePolicy>(setup, parameters, &make_live_policy);
  };
}

}  // namespace astrarium
