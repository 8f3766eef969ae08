// A worker's loop without Python: it hears orders, also while a batch runs, and runs the batches of timed models.
// serving/live/worker.py is the reference. All that this does not understand goes to Python, and so does every batch
// that comes while Python has one: batches take turns in the order in which they were sent.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "timed_model.h"

namespace astrarium::worker {

// What a loop is surrounded by: the other end of its line, and time.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual Time now() = 0;
  // The next packet (empty: the other end is gone), or nothing where none came for a while.
  virtual std::optional<std::string_view> receive() = 0;
  virtual void say(const std::string& packet) = 0;
  // Waits until an instant; whenever a packet can be received, *heard* is asked, and true ends the wait: it returns false.
  virtual bool wait(Time until, const std::function<bool()>& heard) = 0;
};

class BatchLoop {
 public:
  // *pass_on* gives a packet to Python, which says whether it wants its turn.
  using PassOn = std::function<bool(std::string_view packet, Time received)>;

  BatchLoop(Surroundings& around, Memory memory) : around_(around), memory_(memory) {}

  // By any thread.
  void know(std::int64_t model, std::shared_ptr<const TimedModel> timed) {
    const std::lock_guard lock(mutex_);
    models_[model] = std::move(timed);
  }
  void forget(std::int64_t model) {
    const std::lock_guard lock(mutex_);
    models_.erase(model);
  }

  // Serves until Python wants its turn, or nothing was heard for a while. *free* is when the GPU is done with what it was
  // given; so is what this returns.
  Time serve(Time free, const PassOn& pass_on) {
    free_ = free, pass_on_ = &pass_on, python_waits_ = false;
    while (true) {
      if (!turns_.empty()) take();
      else if (python_waits_ || !listen()) return free_;
    }
  }

 private:
  struct Turn {
    std::int64_t run;
    Time received, not_before, takes;
    std::vector<Answer> answers;
    std::string shapes;  // as news tell them
    std::optional<Time> recovery = std::nullopt;  // it is to be stopped or skipped
  };

  bool listen() {
    const auto packet = around_.receive();
    if (packet) obey(*packet, around_.now());
    return packet.has_value();
  }

  void obey(std::string_view packet, Time received) {
    if (!python_waits_ && queue(packet, received)) return;
    if (const auto order = OrderScan(packet).cancel_batch())
      if (cancel(*order)) return;
    python_waits_ |= (*pass_on_)(packet, received);
  }

  // False where it is no batch, or one for Python.
  bool queue(std::string_view packet, Time received) {
    const auto order = OrderScan(packet).run_batch();
    const auto model = order ? find(order->model) : nullptr;
    if (model == nullptr) return false;
    Turn turn{order->run, received, std::max(received, order->start), 0, {}, {}};
    const auto takes = model->takes(order->members.size());
    auto answers = model->answers(memory_, *order, turn.shapes);
    if (!takes || !answers) return false;
    turn.takes = *takes, turn.answers = std::move(*answers);
    turns_.push_back(std::move(turn));
    return true;
  }

  std::shared_ptr<const TimedModel> find(std::int64_t model) {
    const std::lock_guard lock(mutex_);
    const auto known = models_.find(model);
    return known == models_.end() ? nullptr : known->second;
  }

  bool cancel(const CancelBatch& order) {
    for (Turn& turn : turns_) {
      if (turn.run != order.run) continue;
      turn.recovery = order.recovery;
      return true;
    }
    return false;
  }

  // The first batch has its turn; it stays the first until it has ended.
  void take() {
    const Turn& turn = turns_.front();
    const Time began = std::max(free_, turn.not_before), ended = began + turn.takes;
    const bool ran = !turn.recovery && around_.wait(ended, [&] { return heard(), turn.recovery.has_value(); });
    if (!ran) return recover(began);
    free_ = ended;
    write_all(turn.answers);
    around_.say(done(turn, began, ended, around_.now()));
    turns_.pop_front();
  }

  void recover(Time began) {
    const Turn turn = std::move(turns_.front());
    turns_.pop_front();
    const Time stopped = around_.now();
    free_ = stopped + *turn.recovery;
    around_.wait(free_, [this] { return heard(), false; });
    around_.say(cancelled(turn.run, std::min(began, stopped), stopped));
  }

  void heard() { listen(); }

  static std::string done(const Turn& turn, Time began, Time ended, Time finished) {
    std::string packet;
    express::PackWriter pack(packet);
    pack.array(9);
    pack.text("BatchDone");
    for (const Time value : {turn.run, turn.received, began, began, ended, finished}) pack.number(static_cast<std::uint64_t>(value));
    packet += turn.shapes;
    pack.array(0);
    return packet;
  }

  static std::string cancelled(std::int64_t run, Time started, Time stopped) {
    std::string packet;
    express::PackWriter pack(packet);
    pack.array(4);
    pack.text("BatchCancelled");
    for (const Time value : {run, started, stopped}) pack.number(static_cast<std::uint64_t>(value));
    return packet;
  }

  Surroundings& around_;
  const Memory memory_;
  const PassOn* pass_on_ = nullptr;
  bool python_waits_ = false;
  Time free_ = 0;
  std::deque<Turn> turns_;
  std::mutex mutex_;  // for the models
  std::unordered_map<std::int64_t, std::shared_ptr<const TimedModel>> models_;
};

}  // namespace astrarium::worker
