// A worker's loop that hears one order again and again, for as long as there is something to be learnt from it.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "worker/batch_loop.h"

namespace astrarium::worker {

// As a connection on which the next order comes while the last one is carried out.
class Rehearsal : public Environment {
 public:
  Rehearsal(std::string order, int times) : order_(std::move(order)), left_(times) {}

  Time now() override { return front::monotonic_ns(); }
  std::optional<std::string_view> receive() override {
    if (left_ == 0) return std::nullopt;
    --left_;
    ++open_;
    return order_;
  }
  void say(const std::string& packet) override { --open_, news.push_back(packet); }
  bool wait(Time until, const std::function<bool()>&) override {
    while (now() < until) {
    }
    return true;
  }
  void wait_for(Time, const std::function<bool()>& ready, const std::function<void()>& on_packet) override {
    if (left_ > 0 && open_ < 2) on_packet();
    while (!ready()) {
    }
  }

  std::vector<std::string> news;

 private:
  const std::string order_;
  int left_, open_ = 0;
};

// The news of a batch that is run *times* times in a row.
inline std::vector<std::string> rehearse(const Memory& memory, std::shared_ptr<NativeModel> model,
                                         const std::string& order, int times) {
  Rehearsal around(order, times);
  BatchLoop loop(around, memory);
  const auto known = OrderScan(order).run_batch();
  if (!known) throw std::invalid_argument("order: expected one to run a batch");
  loop.know(known->model, std::move(model));
  loop.serve(
      0, [](std::string_view, Time) -> bool { throw std::invalid_argument("order: the model needs Python for it"); });
  return std::move(around.news);
}

}  // namespace astrarium::worker
