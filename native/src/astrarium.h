// Twin of astrarium.serving.policies.astrarium where every model is static.
#pragma once

#include <algorithm>
#include <vector>

#include "line.h"
#include "window.h"

namespace astrarium {

class Astrarium final : public WindowScheduler<Line, Astrarium> {
  friend WindowScheduler;

 public:
  Astrarium(const Setup& setup, double patience, bool lookahead, bool few_gpus)
      : WindowScheduler(setup), lookahead_(lookahead) {
    for (const Model& model : setup.models) queues_.emplace_back(model, network_, patience, lookahead, few_gpus);
  }

 private:
  static constexpr Time kPlanEvery = 50 * kMillisecond;
  static constexpr int kAhead = 2;

  Time opens(const Line& line) const { return line.opens(arrivals_->time[line.head()]); }

  void plan(Time now, const Books& books) {
    if (now < plan_at_) return;
    plan_at_ = now + kPlanEvery;
    demands_.clear();
    for (Line& line : queues_) demands_.push_back(line.demand(now));
    lost_.roll(now);
    std::int64_t came = 0;
    for (const Line& line : queues_) came += line.meter().window().first;
    const double lost = came > 0 ? static_cast<double>(lost_.window().first) / static_cast<double>(came) : 0.0;
    const Climate climate = climate_of(demands_, books.present(), lost);
    for (std::size_t line = 0; line < demands_.size(); ++line) queues_[line].adapt(demands_[line], climate);
  }

  void gave_up(Time now, int count) {
    lost_.roll(now);
    lost_.count(count);
  }

  void settle(Time now, int model, int gpu, Books& books) {
    if (!lookahead_) return WindowScheduler::settle(now, model, gpu, books);
    Line& line = queue(model);
    const Time free = free_[gpu];
    if (line.settled(now, free)) return;
    bool looked = false;
    const auto grants = [&](int batch) -> const std::vector<Time>& {
      if (!looked) look(now, gpu);
      looked = true;
      return next_grants(std::max(now + network_.delay(batch), free) + line.latency(batch));
    };
    give_up(now, line, line.settle(now, free, grants), books);
    if (line.size == 0) forget(model);
  }

  // When the other GPUs are free, as far as the next grants may need them.
  void look(Time now, int gpu) {
    kept_.assign(1, {gpu, free_[gpu]});
    free_.set(gpu, kForever);
    others_.clear();
    while (std::ssize(others_) < kAhead * turn() && free_.least() < kForever) {
      const int next = free_.argmin();
      others_.push_back(std::max(now, free_[next]));
      kept_.emplace_back(next, free_[next]);
      free_.set(next, kForever);
    }
    for (auto kept = kept_.rbegin(); kept != kept_.rend(); ++kept) free_.set(kept->first, kept->second);
  }

  // The GPU at hand is free again at `end`.
  const std::vector<Time>& next_grants(Time end) {
    const auto place = std::upper_bound(others_.begin(), others_.end(), end) - others_.begin();
    grants_.clear();
    for (std::ptrdiff_t found = turn() - 1; found < kAhead * turn() && found <= std::ssize(others_); found += turn())
      grants_.push_back(found < place ? others_[static_cast<std::size_t>(found)]
                        : found == place ? end
                                         : others_[static_cast<std::size_t>(found - 1)]);
    return grants_;
  }

  int turn() const { return std::max(1, open_); }

  bool lookahead_;
  Time plan_at_ = 0;
  RateMeter lost_;
  std::vector<Demand> demands_;
  std::vector<Time> others_, grants_;
  std::vector<std::pair<int, Time>> kept_;
};

inline std::unique_ptr<Policy> make_astrarium(const Setup& setup, const Parameters& p) {
  return std::make_unique<Astrarium>(setup, p.reals.at("patience"), p.integers.at("lookahead") != 0,
                                     p.integers.at("few_gpus") != 0);
}

}  // namespace astrarium
