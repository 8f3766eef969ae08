// A model in CUDA graphs whose batches need no Python: inputs are gathered in pinned memory, answers scattered from it.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensors/batch_copy.h"
#include "worker/graph_runner.h"
#include "worker/native_batch.h"

namespace astrarium::worker {

class GraphWork : public NativeBatch {
 public:
  // *length* is that of the graph.
  GraphWork(std::shared_ptr<GraphRunner> runner, const Memory& memory, std::vector<Member> members, int length = 0)
      : runner_(std::move(runner)), memory_(memory), members_(std::move(members)), length_(length) {}

  bool launched() const override { return batch_ || !error_.empty(); }
  std::size_t in_flight() const override { return runner_->in_flight(); }
  const void* model() const override { return runner_.get(); }

  void launch(Time now) override {
    try {
      gather();
      batch_ = runner_->launch(size(), length_, now);
    } catch (const CudaError& error) {
      error_ = error.what();
      lost_ = error.is_sticky();
    } catch (const std::exception& error) {
      error_ = error.what();
    }
  }

  std::optional<Ran> run(Time free, Time not_before, BatchWait& waiting) override {
    if (!launched() && !waiting.until(not_before)) return std::nullopt;
    if (!launched()) launch(waiting.now());
    if (lost_) throw DeviceLost(error_);
    if (!error_.empty()) throw BatchFailed(error_);
    try {
      await(free, waiting);
      const Ran ran = runner_->ran(*batch_, waiting.now());
      return Ran{std::max(ran.began, free), std::max(ran.ended, free)};
    } catch (const CudaError& error) {
      if (error.is_sticky()) throw DeviceLost(error.what());
      throw BatchFailed(error.what());
    }
  }

  // What goes wrong meanwhile is thrown here: it does not pass through whoever waits.
  void await(Time free, BatchWait& waiting) {
    std::optional<CudaError> failed;
    waiting.until_ready(runner_->expected(*batch_, free), [&] {
      try {
        return runner_->ready(*batch_);
      } catch (const CudaError& error) {
        failed = error;
        return true;
      }
    });
    if (failed) throw *failed;
  }

  void answer() override {
    const auto arrays = runner_->memory(*batch_).outputs;
    protocol::copy_all(protocol::scattering(memory_.data, memory_.size, members_, runner_->outputs(), arrays));
  }

 protected:
  virtual void gather() {
    const auto& arrays = runner_->next_memory().inputs;
    protocol::copy_all(protocol::gathering({memory_.data, memory_.size}, members_, runner_->input_bytes(), arrays));
  }
  virtual int size() const { return static_cast<int>(members_.size()); }

  const std::shared_ptr<GraphRunner> runner_;
  const Memory memory_;
  const std::vector<Member> members_;
  const int length_;
  std::optional<LaunchedBatch> batch_;

 private:
  std::string error_;
  bool lost_ = false;  // the GPU, by this error
};

// A batch of items that have lengths.
class OpenGraphWork : public GraphWork {
 public:
  OpenGraphWork(std::shared_ptr<GraphRunner> runner, const Memory& memory, std::vector<Member> members, int length,
                OpenItems items)
      : GraphWork(std::move(runner), memory, std::move(members), length), items_(std::move(items)) {
    shapes = runner_->open()->shapes(items_);
  }

  void answer() override {
    const auto& arrays = runner_->memory(*batch_).outputs;
    runner_->open()->scatter(items_, static_cast<std::size_t>(length_), members_, memory_.data, arrays);
  }

 protected:
  void gather() override {
    const auto rows = static_cast<std::size_t>(runner_->capacity(static_cast<int>(members_.size()), length_));
    runner_->open()->gather(items_, static_cast<std::size_t>(length_), rows, runner_->next_memory().inputs);
  }

 private:
  const OpenItems items_;
};

// A batch of packed items, and of those behind them that give it the shape of a graph.
class PackedGraphWork : public GraphWork {
 public:
  PackedGraphWork(std::shared_ptr<GraphRunner> runner, const Memory& memory, std::vector<Member> members,
                  GraphShape shape, RestOfGraph rest, OpenItems items)
      : GraphWork(std::move(runner), memory, std::move(members), shape.length),
        size_(shape.capacity),
        rest_(rest),
        items_(std::move(items)) {
    shapes = runner_->open()->shapes(items_);
  }

  void answer() override {
    runner_->packed()->scatter_packed(items_, members_, memory_.data, runner_->memory(*batch_).outputs);
  }

 protected:
  void gather() override { runner_->packed()->gather_packed(items_, rest_, runner_->next_memory().inputs); }
  int size() const override { return size_; }

 private:
  const int size_;
  const RestOfGraph rest_;
  const OpenItems items_;
};

class GraphModel : public NativeModel {
 public:
  explicit GraphModel(std::shared_ptr<GraphRunner> runner) : runner_(std::move(runner)) {}

  std::unique_ptr<NativeBatch> batch(const Memory& memory, const RunBatch& order) override {
    if (runner_->open() != nullptr) return open_batch(memory, order);
    if (!order.shapes.empty() || !runner_->takes(order.members.size()) || !is_well(memory, order.members))
      return nullptr;
    return std::make_unique<GraphWork>(runner_, memory, order.members);
  }

 private:
  // Nothing where no graph may run these lengths together.
  std::unique_ptr<NativeBatch> open_batch(const Memory& memory, const RunBatch& order) const {
    auto items = runner_->open()->items(memory, order);
    if (!items || items->lengths.empty()) return nullptr;
    if (runner_->packed() != nullptr) return packed_batch(memory, order, std::move(*items));
    const auto [shortest, longest] = std::minmax_element(items->lengths.begin(), items->lengths.end());
    const auto length = runner_->length_for(items->lengths.size(), *shortest, *longest);
    if (!length) return nullptr;
    return std::make_unique<OpenGraphWork>(runner_, memory, order.members, *length, std::move(*items));
  }

  // Nothing where an item is empty, which no trial has tried, or they fit no graph.
  std::unique_ptr<NativeBatch> packed_batch(const Memory& memory, const RunBatch& order, OpenItems items) const {
    if (std::find(items.lengths.begin(), items.lengths.end(), 0) != items.lengths.end()) return nullptr;
    const auto known = runner_->packed_for(items.lengths.size(), PackedShapes::total(items));
    if (!known) return nullptr;
    const auto [shape, rest] = *known;
    return std::make_unique<PackedGraphWork>(runner_, memory, order.members, shape, rest, std::move(items));
  }

  // Whether inputs and answers of all members lie where they can be.
  bool is_well(const Memory& memory, const std::vector<Member>& members) const {
    const std::vector<char*> inputs(runner_->inputs().size(), memory.data),
        outputs(runner_->outputs().size(), memory.data);
    try {
      protocol::gathering({memory.data, memory.size}, members, runner_->input_bytes(), inputs);
      protocol::scattering(memory.data, memory.size, members, runner_->outputs(), outputs);
    } catch (const std::invalid_argument&) {
      return false;
    }
    return true;
  }

  const std::shared_ptr<GraphRunner> runner_;
};

}  // namespace astrarium::worker
