// A worker's loop without Python: it hears orders, also while a batch runs, and runs the batches of models that need
// none. serving/live/worker/ is the reference. All that this does not understand goes to Python, and so does every
// batch that comes while Python has one: batches take turns in the order in which they were sent.
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

#include "messages/pack_writer.h"
#include "worker/native_batch.h"

namespace astrarium::worker {

// What a loop is surrounded by: the other end of its connection, and time.
class Environment {
 public:
  virtual ~Environment() = default;
  virtual Time now() = 0;
  // The next packet (empty: the other end is gone), or nothing where none came for a while.
  virtual std::optional<std::string_view> receive() = 0;
  virtual void say(const std::string& packet) = 0;
  // Waits until an instant; whenever a packet can be received, *on_packet* is called, and true ends the wait: it
  // returns false.
  virtual bool wait(Time until, const std::function<bool()>& on_packet) = 0;
  // Waits until something is ready, which is expected at an instant, and asks *on_packet* meanwhile.
  virtual void wait_for(Time expected, const std::function<bool()>& ready, const std::function<void()>& on_packet) = 0;
};

class BatchLoop : private BatchWait {
 public:
  // *pass_on* gives a packet to Python, which says whether it wants its turn.
  using PassOn = std::function<bool(std::string_view packet, Time received)>;

  BatchLoop(Environment& around, Memory memory) : around_(around), memory_(memory) {}

  // By any thread.
  void know(std::int64_t model, std::shared_ptr<NativeModel> native) {
    const std::lock_guard lock(mutex_);
    models_[model] = std::move(native);
  }
  void forget(std::int64_t model) {
    const std::lock_guard lock(mutex_);
    models_.erase(model);
  }

  // Serves until Python wants its turn, or nothing but pings has come for a while. *free* is when the GPU is done with
  // what it was given; so is what this returns.
  Time serve(Time free, const PassOn& pass_on) {
    free_ = free;
    pass_on_ = &pass_on;
    python_waits_ = false;
    while (true) {
      if (!batches_.empty()) take();
      else if (python_waits_ || !listen() || std::exchange(quiet_, false)) return free_;
    }
  }

 private:
  static constexpr Time kQuiet = 1'000'000'000;

  struct QueuedBatch {
    std::int64_t tag;
    Time received, not_before;
    std::unique_ptr<NativeBatch> native;
    std::optional<Time> recovery = std::nullopt;  // it is to be stopped or skipped
  };

  bool listen() {
    const auto packet = around_.receive();
    if (packet) obey(*packet, around_.now());
    return packet.has_value();
  }

  void obey(std::string_view packet, Time received) {
    if (const auto sent = OrderScan(packet).ping()) return answer_ping(*sent, received);
    last_order_ = received;
    if (!python_waits_ && queue(packet, received)) return;
    if (const auto order = OrderScan(packet).cancel_batch())
      if (cancel(*order)) return;
    python_waits_ |= (*pass_on_)(packet, received);
  }

  // The server pings an idle worker all the time: that is no reason for Python not to look around.
  void answer_ping(Time sent, Time received) {
    around_.say(pong(sent, received));
    quiet_ = batches_.empty() && received - std::max(last_order_, free_) >= kQuiet;
    if (quiet_) last_order_ = received;
  }

  // False where it is no batch, or one for Python.
  bool queue(std::string_view packet, Time received) {
    const auto order = OrderScan(packet).run_batch();
    const auto model = order ? find(order->model) : nullptr;
    if (model == nullptr) return false;
    auto native = model->batch(memory_, *order);
    if (native == nullptr) return false;
    batches_.push_back({order->tag, received, std::max(received, order->start), std::move(native)});
    return true;
  }

  std::shared_ptr<NativeModel> find(std::int64_t model) {
    const std::lock_guard lock(mutex_);
    const auto known = models_.find(model);
    return known == models_.end() ? nullptr : known->second;
  }

  bool cancel(const CancelBatch& order) {
    for (QueuedBatch& batch : batches_) {
      if (batch.tag != order.tag) continue;
      batch.recovery = order.recovery;
      return true;
    }
    return false;
  }

  // The first batch has its turn; it stays the first until it has ended.
  void take() {
    QueuedBatch& batch = batches_.front();
    const Time earliest = std::max(free_, batch.not_before);
    try {
      const auto ran = batch.recovery ? std::nullopt : batch.native->run(free_, batch.not_before, *this);
      if (ran) free_ = ran->ended;
      if (!ran || batch.recovery) return recover(earliest);
      batch.native->answer();
      around_.say(done(batch, *ran, around_.now()));
    } catch (const BatchFailed& error) {
      free_ = around_.now();
      around_.say(broken(batch.tag, std::min(earliest, free_), free_, error.what()));
    } catch (const DeviceLost& error) {
      around_.say(last_words(batch.tag, error.what()));
      throw;
    }
    batches_.pop_front();
  }

  Time now() override { return around_.now(); }

  bool until(Time instant) override {
    launch_ahead();
    return around_.wait(instant, [this] { return hear(), batches_.front().recovery.has_value(); });
  }

  void until_ready(Time expected, const std::function<bool()>& ready) override {
    launch_ahead();
    around_.wait_for(expected, ready, [this] { hear(); });
  }

  void hear() {
    listen();
    launch_ahead();
  }

  // The GPU goes from one batch to the next without the host in between.
  void launch_ahead() {
    for (const QueuedBatch& batch : batches_) {
      if (batch.native->launched() || batch.recovery) continue;
      if (!may_launch(batch)) return;
      batch.native->launch(around_.now());
    }
  }

  // One that nothing is ahead of waits for its time; and a model has only so much memory for batches.
  bool may_launch(const QueuedBatch& batch) {
    std::size_t launched = 0, of_model = 0;
    for (const QueuedBatch& other : batches_) {
      launched += other.native->launched();
      of_model += other.native->launched() && other.native->model() == batch.native->model();
    }
    if (launched == 0 && batch.not_before > around_.now()) return false;
    return of_model < batch.native->in_flight();
  }

  void recover(Time began) {
    const QueuedBatch batch = std::move(batches_.front());
    batches_.pop_front();
    const Time stopped = around_.now();
    free_ = stopped + *batch.recovery;
    around_.wait(free_, [this] { return listen(), false; });
    around_.say(cancelled(batch.tag, std::min(began, stopped), stopped));
  }

  static std::string done(const QueuedBatch& batch, const Ran& ran, Time finished) {
    std::string packet;
    protocol::PackWriter pack(packet);
    pack.array(9);
    pack.text("BatchDone");
    for (const Time value : {batch.tag, batch.received, ran.began, ran.began, ran.ended, finished})
      pack.number(static_cast<std::uint64_t>(value));
    packet += batch.native->shapes;
    pack.array(0);
    return packet;
  }

  static std::string broken(std::int64_t tag, Time started, Time finished, std::string_view error) {
    std::string packet;
    protocol::PackWriter pack(packet);
    pack.array(5);
    pack.text("BatchBroken");
    for (const Time value : {tag, started, finished}) pack.number(static_cast<std::uint64_t>(value));
    pack.long_text(error);
    return packet;
  }

  static std::string last_words(std::int64_t tag, std::string_view error) {
    std::string packet;
    protocol::PackWriter pack(packet);
    pack.array(3);
    pack.text("WorkerBroken");
    pack.number(static_cast<std::uint64_t>(tag));
    pack.long_text(error);
    return packet;
  }

  static std::string pong(Time sent, Time received) {
    std::string packet;
    protocol::PackWriter pack(packet);
    pack.array(3);
    pack.text("Pong");
    for (const Time value : {sent, received}) pack.number(static_cast<std::uint64_t>(value));
    return packet;
  }

  static std::string cancelled(std::int64_t tag, Time started, Time stopped) {
    std::string packet;
    protocol::PackWriter pack(packet);
    pack.array(4);
    pack.text("BatchCancelled");
    for (const Time value : {tag, started, stopped}) pack.number(static_cast<std::uint64_t>(value));
    return packet;
  }

  Environment& around_;
  const Memory memory_;
  const PassOn* pass_on_ = nullptr;
  bool python_waits_ = false, quiet_ = false;
  Time free_ = 0, last_order_ = 0;
  std::deque<QueuedBatch> batches_;
  std::mutex mutex_;  // for the models
  std::unordered_map<std::int64_t, std::shared_ptr<NativeModel>> models_;
};

}  // namespace astrarium::worker
