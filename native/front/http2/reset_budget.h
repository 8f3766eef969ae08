// How often a client may make us drop a call before it is answered. Each answer earns one more such call, and so does
// time: who gives up on some of its calls never runs out, who opens streams only to reset them soon does
// (CVE-2023-44487), whether it resets them itself or by frames that we must answer with a reset.
#pragma once

#include <algorithm>
#include <cstddef>

namespace astrarium::front {

class ResetBudget {
 public:
  explicit ResetBudget(std::size_t most) : most_(most), left_(most) {}

  // False where nothing is left.
  bool spend() {
    if (left_ == 0) return false;
    --left_;
    return true;
  }
  void earn(std::size_t more) { left_ = std::min(most_, left_ + more); }

 private:
  std::size_t most_, left_;
};

}  // namespace astrarium::front
