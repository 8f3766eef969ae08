// Twin of astrarium.serving.policies.orloj.score. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "policies/learnt_times.h"

namespace astrarium {

// The score is alpha exp(b (t - base)) + beta until the milestone.
struct ScorePoint {
  double alpha, beta;
  Time milestone;
};

class ScoreTable {
 public:
  ScoreTable(const BatchTime& time, double rate)
      : rate_(rate), scale_(static_cast<double>(std::max<Time>(1, time.mean))), mean_(time.mean) {
    double gathered = 0.0, last = 0.0;
    for (std::size_t bin = 0; bin < time.chances.size(); ++bin) {
      const double chance = time.chances[bin];
      const double width = rate * static_cast<double>(time.edges[bin + 1] - time.edges[bin]);
      const double inside = chance / width;
      if (chance != 0.0 || last != 0.0) append(time.edges[bin], gathered - inside, inside);
      gathered = gathered * std::exp(-width) - chance * (std::expm1(-width) / width);
      last = chance;
    }
    if (last != 0.0) append(time.edges.back(), gathered, 0.0);
  }

  Time mean() const { return mean_; }

  ScorePoint point(Time now, Time due, Time base) const {
    const auto above = std::upper_bound(edges_.begin(), edges_.end(), due - now);
    if (above == edges_.begin()) return {0.0, 0.0, kForever};
    const auto place = static_cast<std::size_t>(above - edges_.begin()) - 1;
    const Time left = due - edges_[place];
    const double alpha = std::exp(-rate_ * static_cast<double>(left - base)) * alphas_[place];
    return {alpha, betas_[place], left + 1};
  }

 private:
  void append(Time edge, double alpha, double beta) {
    edges_.push_back(edge);
    alphas_.push_back(alpha / scale_);
    betas_.push_back(beta / scale_);
  }

  double rate_, scale_;
  Time mean_;
  std::vector<Time> edges_;
  std::vector<double> alphas_, betas_;
};

}  // namespace astrarium
