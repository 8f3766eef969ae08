// The half of Symphony's scheduler that owns models (its ModelThread): queues, candidates, dispatch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "books.h"
#include "model_queue.h"
#include "progress.h"

namespace astrarium {

// Virtual time goes in quanta. What the model threads publish at the end of quantum k the rank thread
// turns into grants for quantum k + lead, so a candidate is up to lead * quantum old when it is matched.
struct Pace {
  Time quantum;
  int lead;

  Time end(int k) const { return (k + 1) * quantum; }
  Time horizon(int k) const { return (k + 1 + lead) * quantum; }  // of the grants made after quantum k
};

// The latest candidate of a model: may be granted from `opens` on. kForever: nothing to match.
struct CandidateChanged {
  int model;
  Time opens, latest, delay;
};

struct GpuGranted {
  Time at;
  int model, gpu;
  Time gpu_free;
};

struct GpuReturned {
  int gpu;
  Time free;
};

struct ModelMail {
  explicit ModelMail(int lead) : candidates(lead), returned(lead), granted(lead) {}

  Ring<CandidateChanged> candidates;  // to the rank thread
  Ring<GpuReturned> returned;         // to the rank thread
  Ring<GpuGranted> granted;           // from the rank thread
};

// The requests of one model thread, in order of arrival; `model` counts within the thread.
struct Share {
  std::vector<int> models;  // of the setup
  std::vector<Time> time, deadline;
  std::vector<std::int32_t> model;
  std::vector<std::int64_t> id;  // of the whole run
};

// How a request ended, in one piece: the requests of a batch lie far apart, and each costs a cache miss.
struct Ending {
  Time done = -1;
  std::int32_t batch = -1;  // of the thread's
  std::int8_t outcome = kOpen, reason = kNone;
};

class ModelThread {
 public:
  ModelMail mail;
  std::vector<Ending> endings;
  Batches batches;

  ModelThread(const Setup& setup, Gather gather, const Share& share, Pace pace)
      : mail(pace.lead), network_(setup.network), share_(share), pace_(pace),
        published_(share.models.size()), due_(share.models.size(), kForever) {
    queues_.reserve(share.models.size());
    local_.assign(setup.models.size(), -1);
    for (std::size_t i = 0; i < share.models.size(); ++i) {
      queues_.emplace_back(setup.models[static_cast<std::size_t>(share.models[i])], network_, gather);
      local_[static_cast<std::size_t>(share.models[i])] = static_cast<int>(i);
    }
  }

  // Made by the thread that fills it.
  void start() { endings.resize(share_.time.size()); }

  // Live through quantum k: arrivals and grants in order of time, then tell what has changed.
  void live(int k) {
    mail.returned.at(k).clear();
    auto& granted = mail.granted.at(k);
    for (const GpuGranted& grant : granted) {
      arrive_until(grant.at + 1);
      take(k, grant);
    }
    granted.clear();
    arrive_until(pace_.end(k));
    publish(k);
  }

 private:
  void arrive_until(Time end) {
    const auto count = static_cast<std::int64_t>(share_.time.size());
    for (; next_ < count && share_.time[static_cast<std::size_t>(next_)] < end; ++next_) {
      const auto row = static_cast<std::size_t>(next_);
      const int model = share_.model[row];
      queue(model).push(share_.time[row], next_, share_.deadline[row]);
      update(share_.time[row], model, 0);
    }
  }

  // Form the candidate anew and note when the rank thread must hear of it.
  void update(Time now, int model, Time gpu_free) {
    ModelQueue& q = queue(model);
    const int dropped = q.gather(now, gpu_free);
    if (dropped > 0) drop(now, q, dropped);
    const auto row = static_cast<std::size_t>(model);
    due_[row] = published_[row] ? -kForever : opens(q);
  }

  void drop(Time now, ModelQueue& q, int count) {
    for (int i = 0; i < count; ++i) {
      const auto row = static_cast<std::size_t>(q.heads()[i]);
      const Reason reason = q.saveable(share_.deadline[row], now) ? kSacrificed : kExpired;
      endings[row] = {now, -1, kDropped, reason};
    }
    q.cut(count);
  }

  Time opens(const ModelQueue& q) const {
    return q.size == 0 ? kForever : q.frontrun() - network_.delay(q.size);
  }

  void take(int k, const GpuGranted& grant) {
    const int model = local_[static_cast<std::size_t>(grant.model)];
    ModelQueue& q = queue(model);
    update(grant.at, model, grant.gpu_free);
    Time free = grant.gpu_free;
    if (q.size > 0) free = dispatch(grant, q);
    mail.returned.at(k).push_back({grant.gpu, free});
    published_[static_cast<std::size_t>(model)] = false;  // the grant used it up
    update(grant.at, model, 0);
  }

  // Send the candidate to the GPU; returns when the GPU will be free again.
  Time dispatch(const GpuGranted& grant, ModelQueue& q) {
    const Time start = std::max(grant.at + network_.delay(q.size), grant.gpu_free);
    const Time finish = start + q.latency(q.size), answered = finish + network_.response;
    const auto batch = static_cast<std::int32_t>(batches.size.size());
    for (int i = 0; i < q.size; ++i) {
      const auto row = static_cast<std::size_t>(q.heads()[i]);
      endings[row] = {answered, batch, answered <= share_.deadline[row] ? kInTime : kLate, kNone};
    }
    note(grant, q.size, start, finish);
    q.cut(q.size);
    return finish;
  }

  void note(const GpuGranted& grant, int size, Time start, Time finish) {
    batches.model.push_back(grant.model);
    batches.gpu.push_back(grant.gpu);
    batches.size.push_back(size);
    batches.dispatched.push_back(grant.at);
    batches.started.push_back(start);
    batches.finished.push_back(finish);
    batches.fate.push_back(kFinished);
  }

  // A scan: some hundred numbers side by side cost less than a tree kept up to date at every arrival.
  // Only candidates that can be granted before the horizon are told, and each only in its last form.
  void publish(int k) {
    auto& candidates = mail.candidates.at(k);
    candidates.clear();
    const Time horizon = pace_.horizon(k);
    for (std::size_t model = 0; model < due_.size(); ++model)
      if (due_[model] < horizon) tell(k, static_cast<int>(model), candidates);
  }

  void tell(int k, int model, std::vector<CandidateChanged>& candidates) {
    ModelQueue& q = queue(model);
    const auto row = static_cast<std::size_t>(model);
    const Time now = pace_.end(k);
    if (q.size > 0 && q.latest() - network_.delay(q.size) < now) update(now, model, 0);
    const Time open = opens(q);
    if (open < pace_.horizon(k)) {
      const Time delay = network_.delay(q.size);
      candidates.push_back({share_.models[row], open, q.latest(), delay});
      published_[row] = true;
      due_[row] = q.latest() - delay + pace_.lead * pace_.quantum;  // look again once it has expired
    } else {
      if (published_[row]) candidates.push_back({share_.models[row], kForever, kForever, 0});
      published_[row] = false;
      due_[row] = open;
    }
  }

  ModelQueue& queue(int model) { return queues_[static_cast<std::size_t>(model)]; }

  Network network_;
  const Share& share_;
  Pace pace_;
  std::vector<ModelQueue> queues_;
  std::vector<std::uint8_t> published_;  // whether the rank thread holds a candidate of the model
  std::vector<Time> due_;                // told at the end of a quantum whose horizon is later than this
  std::vector<int> local_;               // by the setup's number
  std::int64_t next_ = 0;
};

}  // namespace astrarium
