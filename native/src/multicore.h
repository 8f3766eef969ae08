// Symphony's scheduler on several cores (section 4.2 and Figure 18 of the paper): model threads that each
// own some models, one rank thread that owns the GPUs, and nothing shared but messages. Time is virtual.
//
// The threads keep within a window of lead * quantum of each other, which stands for the control delay.
// Every message has its quantum, so what is decided depends neither on the speed of the threads nor on
// their number: one thread alone (`run_alone`) decides the same. The price: a model gets at most one GPU in
// lead + 1 quanta, so the window must be short beside the time in which a model fills a batch.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "rank_thread.h"

namespace astrarium {

struct MulticoreRun {
  Requests requests;
  Batches batches;
  std::int64_t wall_ns = 0;          // from the start of the threads until the last has ended
  std::vector<std::int64_t> cpu_ns;  // of each model thread, then of the rank thread
};

inline constexpr int kMostThreads = 64;

inline void check_threads(const Setup& setup, int model_threads, Pace pace) {
  const auto models = setup.models.size();
  if (model_threads > kMostThreads)
    throw std::invalid_argument("model_threads " + std::to_string(model_threads) + ": must be at most " +
                                std::to_string(kMostThreads));
  if (model_threads < 1 || static_cast<std::size_t>(model_threads) > models)
    throw std::invalid_argument("model_threads " + std::to_string(model_threads) + ": must be from 1 to the " +
                                std::to_string(models) + " models, each of which lives on one thread");
  if (pace.quantum < 1) throw std::invalid_argument("quantum must be at least 1 ns");
  if (pace.lead < 1 || pace.lead > 1000) throw std::invalid_argument("lead must be from 1 to 1000 quanta");
}

// Deal the models out, busiest first, each to the thread with the fewest requests so far.
inline std::vector<int> deal_models(const Arrivals& arrivals, std::size_t models, int threads) {
  std::vector<std::int64_t> requests(models, 0), load(static_cast<std::size_t>(threads), 0);
  for (std::int64_t i = 0; i < arrivals.count; ++i) ++requests[static_cast<std::size_t>(arrivals.model[i])];
  std::vector<int> busiest(models), thread_of_model(models);
  std::iota(busiest.begin(), busiest.end(), 0);
  std::stable_sort(busiest.begin(), busiest.end(), [&](int a, int b) {
    return requests[static_cast<std::size_t>(a)] > requests[static_cast<std::size_t>(b)];
  });
  for (const int model : busiest) {
    const auto thread = std::min_element(load.begin(), load.end());
    *thread += requests[static_cast<std::size_t>(model)] + 1;
    thread_of_model[static_cast<std::size_t>(model)] = static_cast<int>(thread - load.begin());
  }
  return thread_of_model;
}

inline std::vector<Share> share_out(const Arrivals& arrivals, const std::vector<int>& thread_of_model,
                                    int threads) {
  std::vector<Share> shares(static_cast<std::size_t>(threads));
  std::vector<std::int32_t> local(thread_of_model.size());
  for (std::size_t model = 0; model < thread_of_model.size(); ++model) {
    Share& share = shares[static_cast<std::size_t>(thread_of_model[model])];
    local[model] = static_cast<std::int32_t>(share.models.size());
    share.models.push_back(static_cast<int>(model));
  }
  for (std::int64_t i = 0; i < arrivals.count; ++i) {
    const auto model = static_cast<std::size_t>(arrivals.model[i]);
    Share& share = shares[static_cast<std::size_t>(thread_of_model[model])];
    share.time.push_back(arrivals.time[i]);
    share.deadline.push_back(arrivals.deadline[i]);
    share.model.push_back(local[model]);
    share.id.push_back(i);
  }
  return shares;
}

// Keep the calling thread on the n-th of the cores it may use. The system moves threads that wake each
// other often onto one core, and would leave the other idle.
inline void stay_on_core(std::size_t n) {
#ifdef __linux__
  cpu_set_t allowed, chosen;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  n %= static_cast<std::size_t>(CPU_COUNT(&allowed));
  int core = 0;
  while (!CPU_ISSET(core, &allowed) || n-- > 0) ++core;
  CPU_ZERO(&chosen);
  CPU_SET(core, &chosen);
  sched_setaffinity(0, sizeof chosen, &chosen);
#endif
}

class Multicore {
 public:
  Multicore(const Setup& setup, Gather gather, const Arrivals& arrivals, int model_threads, Pace pace)
      : pace_(pace), count_(arrivals.count) {
    check_threads(setup, model_threads, pace);
    std::vector<int> thread_of_model = deal_models(arrivals, setup.models.size(), model_threads);
    shares_ = share_out(arrivals, thread_of_model, model_threads);
    std::vector<ModelMail*> mails;
    for (const Share& share : shares_) {
      models_.push_back(std::make_unique<ModelThread>(setup, gather, share, pace));
      mails.push_back(&models_.back()->mail);
    }
    rank_ = std::make_unique<RankThread>(setup, pace, std::move(mails), std::move(thread_of_model));
    if (count_ > 0) quanta_ = count_quanta(last_deadline(arrivals), pace.quantum);
  }

  // `pin`: each model thread keeps to a core (which pays off unless others want the cores as well).
  MulticoreRun run(bool pin) {
    std::vector<std::int64_t> cpu(models_.size() + 1);
    std::vector<Progress> lived(models_.size());
    Progress ranked;
    const auto began = std::chrono::steady_clock::now();
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < models_.size(); ++i)
        threads.emplace_back([&, i] {
          if (pin) stay_on_core(i);
          live(*models_[i], lived[i], ranked, cpu[i]);
        });
      threads.emplace_back([&] { rank(lived, ranked, cpu.back()); });
    }
    return collect(began, std::move(cpu));
  }

  // The same work in the calling thread.
  MulticoreRun run_alone() {
    const auto began = std::chrono::steady_clock::now();
    const std::int64_t cpu = thread_cpu();
    for (auto& model : models_) model->start();
    for (int k = 0; k < quanta_; ++k) {
      for (auto& model : models_) model->live(k);
      rank_->match(k);
    }
    return collect(began, {thread_cpu() - cpu});
  }

 private:
  static Time last_deadline(const Arrivals& arrivals) {
    const Time last = *std::max_element(arrivals.deadline, arrivals.deadline + arrivals.count);
    return std::max(last, arrivals.time[arrivals.count - 1]) + 1;
  }

  static int count_quanta(Time end, Time quantum) {
    const Time quanta = end / quantum + 1;
    if (quanta > 1'000'000'000)
      throw std::invalid_argument("quantum " + std::to_string(quantum) + " ns is too short for " +
                                  std::to_string(end) + " ns of arrivals");
    return static_cast<int>(quanta);
  }

  static std::int64_t thread_cpu() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
  }

  void live(ModelThread& model, Progress& lived, const Progress& ranked, std::int64_t& cpu) const {
    model.start();
    for (int k = 0; k < quanta_; ++k) {
      ranked.await(k - pace_.lead + 1);  // the grants for this quantum
      model.live(k);
      lived.advance(k + 1);
    }
    cpu = thread_cpu();
  }

  void rank(const std::vector<Progress>& lived, Progress& ranked, std::int64_t& cpu) {
    for (int k = 0; k < quanta_; ++k) {
      for (const Progress& thread : lived) thread.await(k + 1);
      rank_->match(k);
      ranked.advance(k + 1);
    }
    cpu = thread_cpu();
  }

  MulticoreRun collect(std::chrono::steady_clock::time_point began, std::vector<std::int64_t> cpu) {
    MulticoreRun run;
    run.wall_ns = (std::chrono::steady_clock::now() - began) / std::chrono::nanoseconds(1);
    run.cpu_ns = std::move(cpu);
    const auto count = static_cast<std::size_t>(count_);
    run.requests = {std::vector<std::int8_t>(count), std::vector<std::int8_t>(count), std::vector<Time>(count),
                    std::vector<std::int64_t>(count)};
    for (std::size_t i = 0; i < models_.size(); ++i) add(run, shares_[i], *models_[i]);
    return run;
  }

  static void add(MulticoreRun& run, const Share& share, const ModelThread& thread) {
    const auto first_batch = static_cast<std::int64_t>(run.batches.size.size());
    for (std::size_t row = 0; row < share.id.size(); ++row) {
      const auto id = static_cast<std::size_t>(share.id[row]);
      const Ending& ending = thread.endings[row];
      run.requests.outcome[id] = ending.outcome;
      run.requests.reason[id] = ending.reason;
      run.requests.done[id] = ending.done;
      run.requests.batch[id] = ending.batch < 0 ? -1 : first_batch + ending.batch;
    }
    append(run.batches.model, thread.batches.model);
    append(run.batches.gpu, thread.batches.gpu);
    append(run.batches.size, thread.batches.size);
    append(run.batches.dispatched, thread.batches.dispatched);
    append(run.batches.started, thread.batches.started);
    append(run.batches.finished, thread.batches.finished);
    append(run.batches.fate, thread.batches.fate);
  }

  template <class T>
  static void append(std::vector<T>& all, const std::vector<T>& some) {
    all.insert(all.end(), some.begin(), some.end());
  }

  Pace pace_;
  std::int64_t count_;
  std::vector<Share> shares_;
  std::vector<std::unique_ptr<ModelThread>> models_;
  std::unique_ptr<RankThread> rank_;
  int quanta_ = 0;
};

}  // namespace astrarium
