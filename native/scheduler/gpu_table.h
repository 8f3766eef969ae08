// The GPUs of a scheduler: the workers of each, and the batches that it has.
//
// A GPU has a worker that all models share, whose number is the GPU's. A model that broke workers may have workers of
// its own, one on each GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scheduler/batch.h"

namespace astrarium::front {

struct Gpu {
  bool present = false;        // its shared worker
  bool away = true;            // in the policy's books
  std::vector<Batch> batches;  // a few, of all its workers
};

// A worker with one model.
struct OwnWorker {
  int worker, gpu, model;
  bool present = false;
};

class GpuTable {
 public:
  explicit GpuTable(int gpus) : gpus_(static_cast<std::size_t>(gpus)) {}

  int count() const { return static_cast<int>(gpus_.size()); }
  Gpu& operator[](int gpu) { return gpus_[static_cast<std::size_t>(gpu)]; }
  const Gpu& operator[](int gpu) const { return gpus_[static_cast<std::size_t>(gpu)]; }
  auto begin() { return gpus_.begin(); }
  auto end() { return gpus_.end(); }

  // How many have their shared worker.
  int present() const {
    return static_cast<int>(std::count_if(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.present; }));
  }
  bool at_rest() const {
    return std::all_of(gpus_.begin(), gpus_.end(), [](const Gpu& gpu) { return gpu.batches.empty(); });
  }

  bool is_shared(int worker) const { return worker < count(); }
  // Nothing where there is none of this number any more.
  OwnWorker* own_worker(int worker) {
    const auto match = find(worker);
    return match == own_.end() ? nullptr : &own_[static_cast<std::size_t>(match - own_.begin())];
  }
  int gpu_of(int worker) const {
    if (is_shared(worker)) return worker;
    const auto match = find(worker);
    return match == own_.end() ? -1 : match->gpu;
  }
  // Which worker of a GPU runs a model.
  int worker_for(int gpu, int model) const {
    for (const OwnWorker& one : own_)
      if (one.gpu == gpu && one.model == model) return one.worker;
    return gpu;
  }
  bool is_present(int worker) const {
    if (is_shared(worker)) return (*this)[worker].present;
    const auto match = find(worker);
    return match != own_.end() && match->present;
  }

  // A model has these workers, one on each GPU; without any it is back with the others. Batches that were not sent yet
  // go to the worker that has the model now.
  void set_apart(int model, const std::vector<int>& workers) {
    std::erase_if(own_, [model](const OwnWorker& one) { return one.model == model; });
    for (std::size_t gpu = 0; gpu < workers.size(); ++gpu) own_.push_back({workers[gpu], static_cast<int>(gpu), model});
    for (int gpu = 0; gpu < count(); ++gpu)
      for (Batch& batch : (*this)[gpu].batches)
        if (!batch.sent && batch.model == model) batch.worker = worker_for(gpu, model);
  }

  Batch take_first(int gpu) {
    auto& batches = (*this)[gpu].batches;
    Batch batch = std::move(batches.front());
    batches.erase(batches.begin());
    return batch;
  }

 private:
  std::vector<OwnWorker>::const_iterator find(int worker) const {
    return std::find_if(own_.begin(), own_.end(), [worker](const OwnWorker& one) { return one.worker == worker; });
  }

  std::vector<Gpu> gpus_;
  std::vector<OwnWorker> own_;  // few
};

}  // namespace astrarium::front
