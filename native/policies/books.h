// The books of a simulated run and the world that carries decisions out: twins of
// astrarium.serving.state and astrarium.serving.world. A policy commits its decisions here one by one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <optional>
#include <queue>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "policies/contract.h"

namespace astrarium {

// As in Python; nothing fails in a simulated run without leaving GPUs.
enum Outcome : std::int8_t { kOpen = 0, kInTime = 1, kLate = 2, kDropped = 3 };
enum Fate : std::int8_t { kRunning = 0, kFinished = 1, kPreempted = 2 };

// A column by the ids of requests. Where requests come and go, `data` holds a power of two of them: ids wrap around.
template <class T>
class ById {
 public:
  ById(const T* data = nullptr, std::int64_t mask = -1) : data_(data), mask_(mask) {}
  T operator[](std::int64_t id) const { return data_[id & mask_]; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  const T* data_;
  std::int64_t mask_;
};

// The requests of a run, as columns sorted by arrival; `work` is empty where every model is static.
// `application` and `profiled` may be missing (null) where the policy does not listen to the profiler.
struct Arrivals {
  ById<Time> time, deadline;
  ById<std::int32_t> model;
  ById<Time> work;
  std::int64_t count;
  ById<std::int32_t> application = {};
  ById<bool> profiled = {};
  ById<std::int32_t> length = {}, bucket = {};  // of models that have lengths
};

inline void check_arrivals(const Setup& setup, const Arrivals& arrivals) {
  const int models = static_cast<int>(setup.models.size());
  for (std::int64_t i = 0; i < arrivals.count; ++i) {
    if (arrivals.model[i] < 0 || arrivals.model[i] >= models)
      throw std::invalid_argument("request " + std::to_string(i) + ": model " + std::to_string(arrivals.model[i]) +
                                  ": must be from 0 to " + std::to_string(models - 1));
    if (arrivals.time[i] < (i > 0 ? arrivals.time[i - 1] : 0))
      throw std::invalid_argument("request " + std::to_string(i) + ": times must be sorted and not negative");
  }
}

// How long batches of a model with lengths really take, on one kind of GPU: twin of ByLength in
// astrarium.core.profiles, where its words are explained.
struct ByLength {
  std::vector<std::int64_t> lengths;
  std::vector<std::vector<Time>> times;  // by length, then by size, from 1 on
  bool rounded;
  Together together;

  std::int64_t rounded_up(std::int64_t length) const { return rounded ? lengths[place_of(length)] : length; }

  Time time(std::size_t size, std::int64_t length) const {
    const std::size_t place = place_of(length);
    const Time after = times[place][size - 1];
    if (rounded || place == 0 || length >= lengths[place]) return after;
    const Time before = times[place - 1][size - 1];
    return before + (after - before) * (length - lengths[place - 1]) / (lengths[place] - lengths[place - 1]);
  }

  // How many requests of up to this length can run together.
  std::size_t longest_batch(std::int64_t length) const {
    const std::size_t place = place_of(length);
    const std::size_t above = times[place].size();
    return rounded || place == 0 || length >= lengths[place] ? above : std::min(above, times[place - 1].size());
  }

  // Of a batch of requests of these lengths, which it may sort: run after run.
  Time batch_time(std::vector<std::int64_t>& members) const {
    if (together == Together::kPadded)
      return time(members.size(), rounded_up(*std::max_element(members.begin(), members.end())));
    std::sort(members.begin(), members.end());
    Time sum = 0;
    for (std::size_t first = 0, next = 0; first < members.size(); first = next) {
      while (next < members.size() && is_alike(members[next], members[first])) ++next;
      sum += time(next - first, rounded_up(members[first]));
    }
    return sum;
  }

 private:
  std::size_t place_of(std::int64_t length) const {
    const auto place = std::lower_bound(lengths.begin(), lengths.end(), length) - lengths.begin();
    return static_cast<std::size_t>(std::min<std::ptrdiff_t>(place, std::ssize(lengths) - 1));
  }
  bool is_alike(std::int64_t length, std::int64_t other) const {
    return together == Together::kLength ? length == other : rounded_up(length) == rounded_up(other);
  }
};

// How long a batch really takes: a table by kind of GPU, or for dynamic models c0 + c1 k max(work), or a table by
// length.
struct Truth {
  std::vector<int> kind_of_gpu;
  std::vector<std::vector<std::vector<Time>>> tables;  // [kind][model][batch size]
  std::vector<int> dynamic;                            // [model]
  std::vector<Time> c0;                                // [model]
  std::vector<double> c1;                              // [model]
  // [kind][model], nothing for a model without lengths; may be left out where no model has any.
  std::vector<std::vector<std::optional<ByLength>>> by_length = {};
};

struct Requests {
  std::vector<std::int8_t> outcome, reason;
  std::vector<Time> done;
  std::vector<std::int64_t> batch;
};

struct Batches {
  std::vector<std::int32_t> model, gpu, size;
  std::vector<Time> dispatched, started, finished;
  std::vector<std::int8_t> fate;
};

// What the world will do: of the events only those that can happen in a simulated run.
struct Scheduled {
  Time at;
  std::int64_t sequence;
  std::variant<BatchFinished, BatchPreempted, RequestProfiled> event;

  bool operator>(const Scheduled& other) const { return at != other.at ? at > other.at : sequence > other.sequence; }
};

struct RunningBatch {
  std::int64_t run;
  Time start;  // not before: what the policy asked for
  std::vector<std::int64_t> requests;
};

struct Gpu {
  std::deque<RunningBatch> batches;
  std::int64_t recovering = -1;
  Time free = 0, started = 0;  // the world's truth
  bool present = true;

  bool idle() const { return batches.empty() && recovering < 0 && present; }
};

class Books {
 public:
  Books(const Setup& setup, const Arrivals& arrivals, const Truth& truth)
      : setup_(setup), arrivals_(arrivals), truth_(truth), gpus_(static_cast<std::size_t>(setup.gpus)) {
    const auto count = static_cast<std::size_t>(arrivals.count);
    requests.outcome.assign(count, kOpen);
    requests.reason.assign(count, kNone);
    requests.done.assign(count, -1);
    requests.batch.assign(count, -1);
  }
  virtual ~Books() = default;

  const Gpu& gpu(int id) const { return gpus_[static_cast<std::size_t>(id)]; }

  int present() const {
    return static_cast<int>(std::count_if(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.present; }));
  }

  // Send requests of one model to a GPU; `ids` is read at once.
  virtual void dispatch(Time now, int gpu_id, const std::int64_t* ids, int size, Time start) {
    Gpu& gpu = gpus_[static_cast<std::size_t>(gpu_id)];
    const int model = arrivals_.model[ids[0]];
    const std::int64_t run = static_cast<std::int64_t>(runs_++);
    open_batch(model, gpu_id, size, now);
    gpu.batches.push_back({run, start, reuse(ids, size)});
    const Time ready = now + setup_.network.delay(size);
    gpu.started = std::max({ready, start, gpu.free});
    gpu.free = gpu.started + execution(gpu_id, model, ids, size);
    schedule(gpu.free, BatchFinished{gpu_id, run, gpu.started});
  }

  virtual void drop(Time now, std::int64_t request, Reason reason) {
    end(request, kDropped, now, -1);
    requests.reason[static_cast<std::size_t>(request)] = reason;
  }

  // Cancel the batch on a GPU; returns its requests, which wait again.
  virtual std::vector<std::int64_t> preempt(Time now, int gpu_id) {
    Gpu& gpu = gpus_[static_cast<std::size_t>(gpu_id)];
    RunningBatch batch = std::move(gpu.batches.front());
    gpu.batches.pop_front();
    gpu.recovering = batch.run;
    end_batch(batch.run, kPreempted, now, now);
    const Time started = std::min(now, gpu.started);
    gpu.free = now + setup_.preemption_cost;
    schedule(gpu.free, BatchPreempted{gpu_id, batch.run, started, now});
    return std::move(batch.requests);
  }

  // The policy's one timer of this name (a small number); a later one replaces it.
  virtual void set_timer(Time now, Time at, std::size_t name = 0) {
    if (timers_.size() <= name) timers_.resize(name + 1, kForever);
    timers_[name] = std::max(at, now);
  }

  // What follows is for the driver.

  Time next_instant() const {
    Time next = agenda_.empty() ? kForever : agenda_.top().at;
    for (const Time timer : timers_) next = std::min(next, timer);
    return next;
  }

  // Apply what happens at `now`, in order; true if any event or timer was due.
  bool apply(Time now, std::vector<Event>& events) {
    bool due = false;
    for (Time& timer : timers_) {
      if (timer != now) continue;
      timer = kForever;
      due = true;
    }
    while (!agenda_.empty() && agenda_.top().at == now) {
      const auto happening = agenda_.top().event;
      agenda_.pop();
      std::visit(
          [&](const auto& event) {
            apply(now, event);
            events.emplace_back(event);
          },
          happening);
    }
    return due || !events.empty();
  }

  void close(Time now) {
    for (std::int64_t id = 0; id < arrivals_.count; ++id)
      if (requests.outcome[static_cast<std::size_t>(id)] == kOpen) drop(now, id, kUnserved);
  }

  // Count bad requests by model among those that arrive from `warmup` on; once a model exceeds its
  // limit the run is lost (`hopeless`): bad only grows.
  void watch(Time warmup, std::vector<std::int64_t> limits) {
    warmup_ = warmup;
    limits_ = std::move(limits);
    bad_.assign(limits_.size(), 0);
  }
  bool hopeless() const { return hopeless_; }

  // Report the profiled requests `delay` after their batch has ended, in a later instant at any rate.
  void run_profiler(Time delay) { profiler_delay_ = std::max<Time>(1, delay); }

  const std::vector<std::int64_t>& bad() const { return bad_; }

  Requests requests;
  Batches batches;

 protected:
  Gpu& gpu_at(int id) { return gpus_[static_cast<std::size_t>(id)]; }

  // Vectors of finished batches are used again: a dispatch allocates nothing in the long run.
  std::vector<std::int64_t> reuse(const std::int64_t* ids, int size) {
    std::vector<std::int64_t> requests_of_batch;
    if (!spare_.empty()) {
      requests_of_batch = std::move(spare_.back());
      spare_.pop_back();
    }
    requests_of_batch.assign(ids, ids + size);
    return requests_of_batch;
  }

  // The first one of a GPU.
  void forget_batch(Gpu& gpu) {
    spare_.push_back(std::move(gpu.batches.front().requests));
    gpu.batches.pop_front();
  }

 private:
  Time execution(int gpu, int model, const std::int64_t* ids, int size) {
    const auto m = static_cast<std::size_t>(model);
    const auto kind = static_cast<std::size_t>(truth_.kind_of_gpu[static_cast<std::size_t>(gpu)]);
    if (!truth_.by_length.empty() && truth_.by_length[kind][m]) {
      lengths_.clear();
      for (int i = 0; i < size; ++i) lengths_.push_back(arrivals_.length[ids[i]]);
      return truth_.by_length[kind][m]->batch_time(lengths_);
    }
    if (!truth_.dynamic[m]) return truth_.tables[kind][m][static_cast<std::size_t>(size)];
    Time longest = 0;
    for (int i = 0; i < size; ++i) longest = std::max(longest, arrivals_.work[ids[i]]);
    const double padded = truth_.c1[m] * static_cast<double>(size) * static_cast<double>(longest);
    const double whole = std::nearbyint(std::min(padded, static_cast<double>(kLongest)));
    return std::clamp<Time>(truth_.c0[m] + static_cast<Time>(whole), 1, kLongest);
  }

  void apply(Time, const RequestProfiled&) {}

  void apply(Time, const BatchPreempted& event) {
    Gpu& gpu = gpu_at(event.gpu);
    if (gpu.recovering != event.run) return;
    gpu.recovering = -1;
    end_batch(event.run, kPreempted, event.started, event.stopped);
  }

  void apply(Time now, const BatchFinished& event) {
    Gpu& gpu = gpu_at(event.gpu);
    if (gpu.batches.empty() || gpu.batches.front().run != event.run) return;
    const Time answered = now + setup_.network.response;
    for (const std::int64_t id : gpu.batches.front().requests) {
      const bool in_time = answered <= arrivals_.deadline[id];
      end(id, in_time ? kInTime : kLate, answered, event.run);
    }
    end_batch(event.run, kFinished, event.started, now);
    if (profiler_delay_ > 0) profile(now, gpu.batches.front().requests);
    forget_batch(gpu);
  }

  void profile(Time now, const std::vector<std::int64_t>& finished) {
    for (const std::int64_t id : finished)
      if (arrivals_.profiled[id])
        schedule(now + profiler_delay_,
                 RequestProfiled{arrivals_.model[id], arrivals_.application[id], arrivals_.work[id]});
  }

  void end(std::int64_t request, Outcome outcome, Time done, std::int64_t batch) {
    const auto row = static_cast<std::size_t>(request);
    requests.outcome[row] = outcome;
    requests.done[row] = done;
    requests.batch[row] = batch;
    if (outcome == kInTime || limits_.empty() || arrivals_.time[request] < warmup_) return;
    const auto model = static_cast<std::size_t>(arrivals_.model[request]);
    if (++bad_[model] > limits_[model]) hopeless_ = true;
  }

  void open_batch(int model, int gpu, int size, Time now) {
    batches.model.push_back(model);
    batches.gpu.push_back(gpu);
    batches.size.push_back(size);
    batches.dispatched.push_back(now);
    batches.started.push_back(-1);
    batches.finished.push_back(-1);
    batches.fate.push_back(kRunning);
  }

  void end_batch(std::int64_t run, Fate fate, Time started, Time finished) {
    const auto row = static_cast<std::size_t>(run);
    batches.started[row] = started;
    batches.finished[row] = finished;
    batches.fate[row] = fate;
  }

  template <class Happening>
  void schedule(Time at, Happening event) {
    agenda_.push({at, sequence_++, event});
  }

  const Setup& setup_;
  const Arrivals& arrivals_;
  const Truth& truth_;
  std::vector<Gpu> gpus_;
  std::priority_queue<Scheduled, std::vector<Scheduled>, std::greater<>> agenda_;
  std::vector<Time> timers_;
  std::vector<std::vector<std::int64_t>> spare_;
  std::vector<std::int64_t> lengths_;  // of the batch that is looked at
  std::int64_t sequence_ = 0, runs_ = 0;
  Time warmup_ = 0, profiler_delay_ = 0;  // 0: nobody listens
  std::vector<std::int64_t> limits_, bad_;
  bool hopeless_ = false;
};

}  // namespace astrarium
