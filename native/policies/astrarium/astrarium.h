// Twin of astrarium.serving.policies.astrarium. The Python file says what it means; the names are the same.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "policies/astrarium/applications.h"
#include "policies/astrarium/queues.h"
#include "policies/entries.h"
#include "policies/window.h"

namespace astrarium {

class Astrarium final : public WindowScheduler<RequestQueue, Astrarium> {
  friend WindowScheduler;

 public:
  Astrarium(const Setup& setup, const Parameters& p)
      : WindowScheduler(setup, queues(setup)),
        lookahead_(p.integers.at("lookahead") != 0),
        touched_(setup.models.size()),
        running_(static_cast<std::size_t>(setup.gpus)) {
    const double patience = p.reals.at("patience");
    const bool few_gpus = p.integers.at("few_gpus") != 0;
    for (const Model& model : setup.models) {
      const auto grouping = static_cast<Grouping>(p.integers.at("lines"));
      crowds_.push_back(model.dynamic ? std::make_unique<Applications>(model, p.integers.at("memory"), grouping)
                                      : nullptr);
      buckets_.push_back(model.lengths ? std::make_unique<Buckets>(*model.lengths, model.slo, grouping) : nullptr);
      const LearntTimes* times = crowds_.back() ? &crowds_.back()->times : nullptr;
      places_.emplace_back();
      for (std::size_t place = 0; place < queues_of(model); ++place) {
        places_.back().push_back(static_cast<int>(queues_.size()));
        queues_.emplace_back(model.lengths ? bucket_of(model, place) : model, network_, patience, lookahead_, few_gpus,
                             times, buckets_.back().get());
      }
      first_.push_back(places_.back()[0]);
      several_ |= places_.back().size() > 1;
      has_lengths_ |= model.lengths.has_value();
    }
    for (std::size_t model = 0; model < crowds_.size(); ++model) {
      learns_ |= crowds_[model] != nullptr;
      if (Groups* groups = groups_of(model)) form(static_cast<int>(model), *groups);
    }
    changed_.clear();  // there is nothing to look at yet
  }

  bool listens_to_profiler() const override { return learns_; }

 private:
  struct Running {
    std::int64_t run;
    int model;
    std::vector<int> applications;
  };

  static std::size_t queues_of(const Model& model) {
    if (model.lengths) return model.lengths->longest.size();
    return model.dynamic ? std::max<std::size_t>(1, model.dynamic->history.size()) : 1;
  }
  static std::size_t queues(const Setup& setup) {
    std::size_t count = 0;
    for (const Model& model : setup.models) count += queues_of(model);
    return count;
  }

  // The model as if all its requests were of one bucket.
  const Model& bucket_of(const Model& model, std::size_t bucket) {
    alike_.push_back(std::make_unique<Model>(Model{model.slo, model.lengths->latency[bucket]}));
    return *alike_.back();
  }

  int index_of(std::int64_t id) const {
    const int model = arrivals_->model[id];
    if (!several_) return model;
    const auto& places = places_[static_cast<std::size_t>(model)];
    if (places.size() == 1) return places[0];
    const bool is_dynamic = crowds_[static_cast<std::size_t>(model)] != nullptr;
    return places[static_cast<std::size_t>(is_dynamic ? arrivals_->application[id] : arrivals_->bucket[id])];
  }

  Applications* crowd(int model) { return crowds_[static_cast<std::size_t>(model)].get(); }

  Groups* groups_of(std::size_t model) {
    if (crowds_[model]) return crowds_[model].get();
    return buckets_[model].get();
  }

  // A queue for each group of a model's applications or buckets.
  void form(int model, Groups& of) {
    const int first = first_[static_cast<std::size_t>(model)], last = first + static_cast<int>(of.meters.size());
    moving_.clear();
    for (int index = first; index < last; ++index) {
      queue(index).clear(moving_);
      queue(index).measure({});
      changed_.push_back(index);
    }
    int index = first;
    for (const Group& group : of.groups) {
      for (const int kind : group) places_[static_cast<std::size_t>(model)][static_cast<std::size_t>(kind)] = index;
      queue(index).measure(RateMeter::sum(of.meters, group));
      queue(index++).plan_with(of.table(group), group.size());
    }
    for (const auto& [id, deadline] : moving_) queue(index_of(id)).insert(id, deadline);
  }

  void regroup(Time now, int model, Groups& of) {
    if (of.regroup(now)) return form(model, of);
    int index = first_[static_cast<std::size_t>(model)];
    for (const Group& group : of.groups) {
      queue(index).plan_with(of.table(group), group.size());
      changed_.push_back(index++);
    }
  }

  // Learn from arrivals, from batches, and from what the profiler measured.
  void study(const Instant& instant) {
    for (std::int64_t id = instant.first; has_lengths_ && id < instant.last; ++id) measure(instant, id);
    if (!learns_) return;
    for (std::int64_t id = instant.first; id < instant.last; ++id) {
      const int model = instant.arrivals.model[id];
      if (!crowd(model)) continue;
      crowd(model)->arrived(instant.now, instant.arrivals.application[id]);
      touched_.add(model);
    }
    for (const Event& event : instant.events)
      std::visit([&](const auto& event) { learn_from(instant.now, event); }, event);
    for (const int model : touched_.members())  // in any order: a model touches no other
      if (crowd(model)->times.refreshed(instant.now)) regroup(instant.now, model, *crowd(model));
    touched_.clear();
  }

  // Count what comes of each bucket of lengths.
  void measure(const Instant& instant, std::int64_t id) {
    Buckets* const buckets = buckets_[static_cast<std::size_t>(instant.arrivals.model[id])].get();
    if (!buckets) return;
    buckets->arrived(instant.now, instant.arrivals.bucket[id]);
    queue(index_of(id)).count(instant.arrivals.length[id], 1);
  }

  // Group buckets by the rates until now: often at first, when these are new.
  void group_lengths(Time now) {
    if (!has_lengths_ || now < group_at_) return;
    if (group_at_ == 0) began_ = now;
    group_at_ = now + std::min(kRefresh, std::max(kPlanEvery, now - began_));
    for (std::size_t model = 0; model < buckets_.size(); ++model)
      if (buckets_[model]) regroup(now, static_cast<int>(model), *buckets_[model]);
  }

  void learn_from(Time now, const RequestProfiled& profiled) {
    if (!crowd(profiled.model)) return;
    crowd(profiled.model)->times.measured(now, profiled.application, profiled.alone);
    touched_.add(profiled.model);
  }
  void learn_from(Time now, const BatchFinished& finished) {
    std::deque<Running>& running = running_on(finished.gpu);
    if (running.empty() || running.front().run != finished.run) return;
    const Running batch = std::move(running.front());
    running.pop_front();
    if (!crowd(batch.model)) return;
    const Time took = (finished.stopped ? finished.stopped : now) - finished.started;
    crowd(batch.model)->times.finished(now, batch.applications, took, kSafe);
    touched_.add(batch.model);
  }
  void learn_from(Time, const BatchFailed& failed) { running_on(failed.gpu).clear(); }
  void learn_from(Time, const GpuLeft& gone) { running_on(gone.gpu).clear(); }
  void learn_from(Time, const BatchPreempted&) {}  // it cancels none
  void learn_from(Time, const GpuJoined&) {}

  // Remember which requests run together: a batch's time tells about its members.
  void sent(int gpu, const RunningBatch& batch) {
    if (!learns_) return;
    Running running{batch.run, arrivals_->model[batch.requests[0]], {}};
    for (const std::int64_t id : batch.requests) running.applications.push_back(arrivals_->application[id]);
    running_on(gpu).push_back(std::move(running));
  }

  std::deque<Running>& running_on(int gpu) { return running_[static_cast<std::size_t>(gpu)]; }

  static constexpr Time kPlanEvery = 50 * kMillisecond;
  static constexpr int kAhead = 2;

  Time opens(const RequestQueue& queue) const { return queue.opens(arrivals_->time[queue.head()]); }

  void plan(Time now, const Books& books) {
    if (now < plan_at_) return;
    plan_at_ = now + kPlanEvery;
    group_lengths(now);
    demands_.clear();
    for (RequestQueue& queue : queues_) demands_.push_back(queue.demand(now));
    lost_.roll(now);
    std::int64_t came = 0;
    for (const RequestQueue& queue : queues_) came += queue.meter().window().first;
    const double lost = came > 0 ? static_cast<double>(lost_.window().first) / static_cast<double>(came) : 0.0;
    const Climate climate = climate_of(demands_, books.present(), lost);
    for (std::size_t index = 0; index < demands_.size(); ++index) queues_[index].adapt(demands_[index], climate);
  }

  void gave_up(Time now, RequestQueue& queue, int count) {
    lost_.roll(now);
    lost_.count(count);
    forget_lengths(queue, count);
  }

  // The first ones of a queue leave it.
  void forget_lengths(RequestQueue& queue, int count) {
    for (int place = 0; queue.has_lengths() && place < count; ++place)
      queue.count(arrivals_->length[queue.heads()[place]], -1);
  }

  void settle(Time now, int place, int gpu, Books& books) {
    const Time free = free_[gpu];
    if (lookahead_) settle_ahead(now, place, gpu, books);
    else WindowScheduler::settle(now, place, gpu, books);
    RequestQueue& q = queue(place);
    if (q.size && q.has_lengths()) choose_by_length(now, place, free, books);
    else if (q.size) q.choose(now, free, *arrivals_);
  }

  // The first request, and all that may join it, there and in the model's other queues.
  void choose_by_length(Time now, int index, Time free, Books& books) {
    RequestQueue& q = queue(index);
    give_up(now, q, q.late(now, free, *arrivals_), books);
    q.size = 0;
    if (q.empty()) return forget(index);
    Crew crew = q.crew_of_first(*arrivals_);
    own_ = 1 + q.join(crew, now, free, 1, *arrivals_);
    guests_.clear();
    for (const int other : others(index))
      if (const int count = queue(other).join(crew, now, free, 0, *arrivals_)) guests_.push_back({other, count});
    q.lead(crew);
  }

  // Those of the model that hold requests, the most urgent first.
  const std::vector<int>& others(int index) {
    others_of_model_.clear();
    const auto model = static_cast<std::size_t>(arrivals_->model[queue(index).head()]);
    const int first = first_[model], last = first + static_cast<int>(buckets_[model]->groups.size());
    for (int place = first; place < last; ++place)
      if (place != index && !queue(place).empty()) others_of_model_.push_back(place);
    std::stable_sort(others_of_model_.begin(), others_of_model_.end(), [this](int one, int other) {
      return queue(one).first_deadline() < queue(other).first_deadline();
    });
    return others_of_model_;
  }

  const std::int64_t* batch_of(int index) {
    const RequestQueue& q = queue(index);
    if (!q.has_lengths() || guests_.empty()) return q.heads();
    batch_.assign(q.heads(), q.heads() + own_);
    for (const Guests& guests : guests_) {
      const std::int64_t* ids = queue(guests.queue).heads();
      batch_.insert(batch_.end(), ids, ids + guests.count);
    }
    return batch_.data();
  }

  void leave(Time now, int index, Books& books) {
    if (!queue(index).has_lengths()) return WindowScheduler::leave(now, index, books);
    cut(index, own_);
    for (const Guests& guests : guests_) cut(guests.queue, guests.count);
    std::sort(guests_.begin(), guests_.end(),
              [](const Guests& one, const Guests& other) { return one.queue < other.queue; });
    update(now, index, 0, books);
    for (const Guests& guests : guests_) update(now, guests.queue, 0, books);
  }

  void cut(int index, int count) {
    forget_lengths(queue(index), count);
    queue(index).cut(count);
  }

  void settle_ahead(Time now, int index, int gpu, Books& books) {
    RequestQueue& q = queue(index);
    const Time free = free_[gpu];
    if (q.settled(now, free)) return;
    bool looked = false;
    const auto grants = [&](int batch) -> const std::vector<Time>& {
      if (!looked) look(now, gpu);
      looked = true;
      return next_grants(std::max(now + network_.delay(batch), free) + q.latency(batch));
    };
    give_up(now, q, q.settle(now, free, grants), books);
    if (q.size == 0) forget(index);
  }

  // When the other GPUs are free, as far as the next grants may need them.
  void look(Time now, int gpu) {
    free_before_.assign(1, {gpu, free_[gpu]});
    free_.set(gpu, kForever);
    others_.clear();
    while (std::ssize(others_) < std::ptrdiff_t{kAhead} * turn() && free_.least() < kForever) {
      const int next = free_.argmin();
      others_.push_back(std::max(now, free_[next]));
      free_before_.emplace_back(next, free_[next]);
      free_.set(next, kForever);
    }
    for (auto entry = free_before_.rbegin(); entry != free_before_.rend(); ++entry)
      free_.set(entry->first, entry->second);
  }

  // The GPU at hand is free again at `end`.
  const std::vector<Time>& next_grants(Time end) {
    const auto place = std::upper_bound(others_.begin(), others_.end(), end) - others_.begin();
    grants_.clear();
    for (std::ptrdiff_t grant = turn() - 1; grant < std::ptrdiff_t{kAhead} * turn() && grant <= std::ssize(others_);
         grant += turn())
      grants_.push_back(grant < place    ? others_[static_cast<std::size_t>(grant)]
                        : grant == place ? end
                                         : others_[static_cast<std::size_t>(grant - 1)]);
    return grants_;
  }

  int turn() const { return std::max(1, open_); }

  bool lookahead_, learns_ = false, several_ = false, has_lengths_ = false;
  std::vector<std::unique_ptr<Applications>> crowds_;  // by model; none of static ones
  std::vector<std::unique_ptr<Buckets>> buckets_;      // by model; none without lengths
  std::vector<std::unique_ptr<Model>> alike_;          // as if all requests were of one bucket
  std::vector<std::vector<int>> places_;               // by model, and application or bucket: its queue
  std::vector<int> first_;                             // by model: the first of its queues
  IndexSet touched_;
  std::vector<std::deque<Running>> running_;  // by GPU
  std::vector<std::pair<std::int64_t, Time>> moving_;
  Time plan_at_ = 0, group_at_ = 0, began_ = 0;
  RateMeter lost_;
  std::vector<Demand> demands_;
  std::vector<Time> others_, grants_;
  std::vector<std::pair<int, Time>> free_before_;
  // of the batch that is about to leave, where its model has lengths
  int own_ = 0;
  std::vector<Guests> guests_;
  std::vector<std::int64_t> batch_;
  std::vector<int> others_of_model_;
};

inline std::unique_ptr<Policy> make_astrarium(const Setup& setup, const Parameters& p) {
  return std::make_unique<Astrarium>(setup, p);
}

}  // namespace astrarium
