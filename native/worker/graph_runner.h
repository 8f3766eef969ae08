// Runs a model that was captured in CUDA graphs: copies a batch to the GPU, launches the graph of its size, and copies
// the answers back, all of it in the order of streams, while the host goes on. Graphs and memory are made by
// serving/live/backends/torch/cuda_runner.py.
#pragma once

#include <algorithm>
#include <atomic>
#include <compare>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "worker/cuda_driver.h"
#include "worker/native_batch.h"
#include "worker/open_shapes.h"
#include "worker/packed_shapes.h"

namespace astrarium::worker {

// How far a batch has come; the host has its answers when it is done.
class Milestones {
 public:
  explicit Milestones(const CudaDriver& driver)
      : copied(driver.new_event(false)),
        began(driver.new_event(true)),
        computed(driver.new_event(true)),
        done(driver.new_event(true)),
        driver_(driver) {}
  ~Milestones() {
    for (const Handle event : {copied, began, computed, done}) driver_.destroy(event);
  }
  Milestones(const Milestones&) = delete;
  Milestones& operator=(const Milestones&) = delete;

  const Handle copied, began, computed, done;

 private:
  const CudaDriver& driver_;
};

// The streams of a GPU are the same for all models: their batches are computed one by one.
class GpuStreams {
 public:
  // The calling thread has the GPU's context.
  GpuStreams(const std::string& library, Handle copy_in, Handle compute, Handle copy_out)
      : driver(library), copy_in(copy_in), compute(compute), copy_out(copy_out), context_(driver.context()) {}

  void enter() const { driver.enter(context_); }

  // Whether the GPU has nothing to do for us.
  bool idle() {
    const std::lock_guard lock(mutex_);
    return last_ == nullptr || driver.happened(last_->done);
  }
  void note_launch(std::shared_ptr<Milestones> last) {
    const std::lock_guard lock(mutex_);
    last_ = std::move(last);
  }

  const CudaDriver driver;
  const Handle copy_in, compute, copy_out;

 private:
  const Handle context_;
  std::mutex mutex_;  // models are loaded in a thread of their own, and tried there
  std::shared_ptr<Milestones> last_;
};

// The memory of one batch in flight, by input and by output.
struct SlotMemory {
  std::vector<char*> inputs;           // pinned
  std::vector<DevicePointer> staged;   // where inputs wait while the batch before is computed
  std::vector<DevicePointer> results;  // where outputs wait while the next one is
  std::vector<char*> outputs;          // pinned
};

struct GraphInput {
  DevicePointer device;  // of an input that all graphs read
  std::size_t item;      // bytes
  // For items of some length: bytes for each element of that, and whether the rows behind a batch are copied, too.
  std::size_t each = 0;
  bool fills_rest = false;
  DevicePointer rest = 0;  // rows for behind a batch, of a fixed size; none where these are zeros
  bool packed = false;     // whether the length is that of all items together
  std::size_t more = 0;    // bytes behind those of the items: offsets have one number more

  std::size_t bytes(int rows, int length) const {
    const auto items = static_cast<std::size_t>(rows);
    return items * item + (packed ? 1 : items) * each * static_cast<std::size_t>(length) + more;
  }
};

// What a graph takes: items of one length (0 where the model knows of none), and up to so many of them. Where they are
// packed, it is exactly so many, of a total length.
struct GraphShape {
  int length, capacity;
  auto operator<=>(const GraphShape&) const = default;
};

// A batch that the GPU was given.
struct LaunchedBatch {
  int size;
  GraphShape shape;
  std::size_t slot;
  std::shared_ptr<Milestones> milestones;
  Time launched;
};

class GraphRunner {
 public:
  // *open* describes the tensors of a model whose items have a length.
  GraphRunner(std::shared_ptr<GpuStreams> streams, std::vector<GraphInput> inputs, std::vector<std::size_t> outputs,
              std::vector<SlotMemory> slots, std::shared_ptr<const OpenShapes> open = nullptr)
      : streams_(std::move(streams)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        slots_(std::move(slots)),
        open_(std::move(open)),
        packed_(dynamic_cast<const PackedShapes*>(open_.get())),
        outputs_each_(outputs_.size()),
        busy_(slots_.size()) {
    if (slots_.empty()) throw std::invalid_argument("slots: expected at least one");
    if (open_ != nullptr) take_layout();
    for (const SlotMemory& slot : slots_) check(slot);
    for (const GraphInput& input : inputs_) input_bytes_.push_back(input.item);
    // The clock looks back at the batch before, whose slot may have been given away by then.
    for (std::size_t i = 0; i < 2 * slots_.size(); ++i)
      milestones_.push_back(std::make_shared<Milestones>(streams_->driver));
  }

  // A graph for batches of up to *capacity*, and where it leaves its outputs. Graphs may be added while others run.
  void add(int capacity, Handle graph, std::vector<DevicePointer> outputs, int length = 0) {
    if (capacity < 1) throw std::invalid_argument("capacity: expected at least 1, got " + std::to_string(capacity));
    const std::size_t longest = open_ == nullptr ? 0 : open_->longest();
    if (length < 0 || static_cast<std::size_t>(length) > longest || (length == 0) != (open_ == nullptr))
      throw std::invalid_argument("length: expected up to " + std::to_string(longest) + ", got " +
                                  std::to_string(length));
    if (outputs.size() != outputs_.size()) throw std::invalid_argument("outputs: expected one for each output");
    const std::lock_guard lock(adding_);
    graphs_[{length, capacity}] = {graph, std::move(outputs)};
  }

  // From now on, items are padded to the length of a graph: that changes no answers of this model.
  void allow_padding() { pads_ = true; }

  // Whether there is a graph for a batch of this size, of items of this length: in total, where they are packed.
  bool takes(std::size_t size, std::size_t length = 0) const {
    return packed_ == nullptr ? length_for(size, length, length).has_value() : packed_for(size, length).has_value();
  }

  // The first graph that packed items fit in, with those behind them.
  std::optional<std::pair<GraphShape, RestOfGraph>> packed_for(std::size_t count, std::size_t total) const {
    constexpr std::size_t most = std::numeric_limits<int>::max();
    if (count < 1 || count > most || total > most) return std::nullopt;
    const std::lock_guard lock(adding_);
    for (auto at = graphs_.lower_bound({static_cast<int>(total), 0}); at != graphs_.end(); ++at) {
      const auto [length, capacity] = at->first;
      const auto rest =
          packed_->rest(static_cast<std::size_t>(capacity), static_cast<std::size_t>(length), count, total);
      if (rest) return std::pair(at->first, *rest);
    }
    return std::nullopt;
  }

  // The length of the graph for a batch of items from the shortest to the longest, if there is one.
  std::optional<int> length_for(std::size_t size, std::size_t shortest, std::size_t longest) const {
    constexpr std::size_t most = std::numeric_limits<int>::max();
    if (size < 1 || size > most || longest > most || (shortest < longest && !pads_)) return std::nullopt;
    const int rows = static_cast<int>(size);
    const std::lock_guard lock(adding_);
    auto at = graphs_.lower_bound({static_cast<int>(longest), rows});
    while (at != graphs_.end() && (pads_ || at->first.length == static_cast<int>(longest))) {
      if (at->first.capacity >= rows) return at->first.length;
      at = graphs_.lower_bound({at->first.length, rows});  // behind the smaller ones of the next length
    }
    return std::nullopt;
  }

  // How many rows the graph has that a batch will run in, or one that is added meanwhile, which has fewer.
  int capacity(int size, int length) const { return graph_for(size, length).first.capacity; }

  std::size_t in_flight() const { return slots_.size(); }
  const std::vector<GraphInput>& inputs() const { return inputs_; }
  const std::vector<std::size_t>& input_bytes() const { return input_bytes_; }  // of an item
  const std::vector<std::size_t>& outputs() const { return outputs_; }
  const OpenShapes* open() const { return open_.get(); }
  const PackedShapes* packed() const { return packed_; }  // the same, where items are packed
  const SlotMemory& memory(const LaunchedBatch& batch) const { return slots_[batch.slot]; }

  // The slot that the next batch is gathered in: nobody uses it any more.
  std::size_t next() {
    if (busy_[next_] != nullptr) {
      streams_->enter();
      streams_->driver.await(busy_[next_]->done);
      busy_[next_] = nullptr;
    }
    return next_;
  }
  const SlotMemory& next_memory() { return slots_[next()]; }

  // Gives the GPU what was gathered in the next slot.
  LaunchedBatch launch(int size, int length, Time now) {
    const auto& [shape, graph] = graph_for(size, length);
    const std::size_t slot = next();
    const auto& milestones = milestones_[turn_++ % milestones_.size()];
    if (milestones == seen_) seen_ = nullptr;  // those in between were cancelled before their turn
    streams_->enter();
    give(size, shape, graph, slots_[slot], *milestones);
    busy_[slot] = milestones;
    next_ = (next_ + 1) % slots_.size();
    streams_->note_launch(milestones);
    return {size, shape, slot, milestones, now};
  }

  // Waits for all that the GPU was given, also for batches that were cancelled: the memory can go after that.
  void finish() {
    for (std::size_t i = 0; i < slots_.size(); ++i) next(), next_ = (next_ + 1) % slots_.size();
  }

  bool ready(const LaunchedBatch& batch) const { return streams_->driver.happened(batch.milestones->done); }

  // When a batch can be expected to be ready; *free* is when the GPU was done with the one before.
  Time expected(const LaunchedBatch& batch, Time free) const {
    const auto known = takes_.find(batch.shape);
    return std::max(free, batch.launched) + (known == takes_.end() ? 0 : known->second);
  }

  // When the GPU computed a batch of which the host has *seen* all now; batches are seen in their order.
  Ran ran(const LaunchedBatch& batch, Time seen) {
    const Milestones& passed = *batch.milestones;
    const Time done = when_done(batch.milestones, seen),
               ended = done - streams_->driver.elapsed(passed.computed, passed.done);
    const Time began = ended - streams_->driver.elapsed(passed.began, passed.computed);
    learn(batch.shape, done - began);
    return {began, ended};
  }

 private:
  static constexpr Time kDrift = 10'000;  // the clocks of a GPU and of its host differ by less than one part in this

  struct Graph {
    Handle graph;
    std::vector<DevicePointer> outputs;
  };

  // The smallest graph that is large enough; it stays where it is when others are added.
  const std::pair<const GraphShape, Graph>& graph_for(int size, int length) const {
    const std::lock_guard lock(adding_);
    const auto smallest = graphs_.lower_bound({length, size});
    if (size < 1 || smallest == graphs_.end() || smallest->first.length != length)
      throw std::invalid_argument("size: there is no graph for a batch of " + std::to_string(size));
    return *smallest;
  }

  void take_layout() {
    if (open_->inputs().size() != inputs_.size() || open_->outputs().size() != outputs_.size())
      throw std::invalid_argument("open: expected a tensor for each input and each output");
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const OpenTensor& tensor = open_->inputs()[i].tensor;
      inputs_[i] = {inputs_[i].device, tensor.fixed(), tensor.each(), open_->fills_rest(i)};
      inputs_[i].packed = packed_ != nullptr;
      if (open_->inputs()[i].source == Source::kOffsets) inputs_[i].more = tensor.fixed();
    }
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      outputs_[i] = open_->outputs()[i].fixed();
      outputs_each_[i] = open_->outputs()[i].each();
    }
  }

  void check(const SlotMemory& slot) const {
    if (slot.inputs.size() != inputs_.size() || slot.staged.size() != inputs_.size())
      throw std::invalid_argument("slots: expected memory for each of " + std::to_string(inputs_.size()) + " inputs");
    if (slot.outputs.size() != outputs_.size() || slot.results.size() != outputs_.size())
      throw std::invalid_argument("slots: expected memory for each of " + std::to_string(outputs_.size()) + " outputs");
  }

  // Where nothing runs that copies could run beside, one stream does it all, which is launched in less time.
  void give(int size, GraphShape shape, const Graph& graph, const SlotMemory& slot, const Milestones& milestones) {
    try {
      if (streams_->idle()) run_in_one_stream(size, shape, graph, slot, milestones);
      else run_beside_copies(size, shape, graph, slot, milestones);
    } catch (...) {
      streams_->driver.synchronize(streams_->copy_in);  // the slot is for the next batch
      throw;
    }
  }

  void run_in_one_stream(int size, GraphShape shape, const Graph& graph, const SlotMemory& slot,
                         const Milestones& milestones) {
    const CudaDriver& driver = streams_->driver;
    const Handle stream = streams_->compute;
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      driver.copy_to_device(inputs_[i].device, slot.inputs[i], input_bytes(i, size, shape), stream);
    clear_rest(size, shape);
    driver.record(milestones.began, stream);
    driver.launch(graph.graph, stream);
    driver.record(milestones.computed, stream);
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      driver.copy_to_host(slot.outputs[i], graph.outputs[i], output_bytes(i, size, shape), stream);
    driver.record(milestones.done, stream);
  }

  void run_beside_copies(int size, GraphShape shape, const Graph& graph, const SlotMemory& slot,
                         const Milestones& milestones) {
    const CudaDriver& driver = streams_->driver;
    copy_in(size, shape, slot, milestones);
    driver.follow(streams_->compute, milestones.copied);
    driver.record(milestones.began, streams_->compute);
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      driver.copy_within(inputs_[i].device, slot.staged[i], input_bytes(i, size, shape), streams_->compute);
    clear_rest(size, shape);
    driver.launch(graph.graph, streams_->compute);
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      driver.copy_within(slot.results[i], graph.outputs[i], output_bytes(i, size, shape), streams_->compute);
    driver.record(milestones.computed, streams_->compute);
    copy_out(size, shape, slot, milestones);
  }

  void copy_in(int size, GraphShape shape, const SlotMemory& slot, const Milestones& milestones) {
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      streams_->driver.copy_to_device(slot.staged[i], slot.inputs[i], input_bytes(i, size, shape), streams_->copy_in);
    streams_->driver.record(milestones.copied, streams_->copy_in);
  }

  void copy_out(int size, GraphShape shape, const SlotMemory& slot, const Milestones& milestones) {
    streams_->driver.follow(streams_->copy_out, milestones.computed);
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      streams_->driver.copy_to_host(slot.outputs[i], slot.results[i], output_bytes(i, size, shape), streams_->copy_out);
    streams_->driver.record(milestones.done, streams_->copy_out);
  }

  // Not what the last batch left there.
  void clear_rest(int size, GraphShape shape) {
    for (const GraphInput& input : inputs_) {
      if (input.fills_rest || input.packed) continue;
      const DevicePointer behind = input.device + input.bytes(size, shape.length);
      const std::size_t bytes = input.bytes(shape.capacity - size, shape.length);
      if (input.rest == 0) streams_->driver.clear(behind, bytes, streams_->compute);
      else streams_->driver.copy_within(behind, input.rest, bytes, streams_->compute);
    }
  }

  std::size_t input_bytes(std::size_t input, int size, GraphShape shape) const {
    return inputs_[input].bytes(inputs_[input].fills_rest ? shape.capacity : size, shape.length);
  }
  std::size_t output_bytes(std::size_t output, int size, GraphShape shape) const {
    const auto items = static_cast<std::size_t>(size);
    const auto whole = outputs_each_[output] * static_cast<std::size_t>(shape.length);
    return items * outputs_[output] + (packed_ == nullptr ? items : 1) * whole;
  }

  // A batch is done when the host sees so, or a little before; and as long after the one seen before as the GPU says.
  // The earlier of both is closer: the host may have been busy meanwhile.
  Time when_done(const std::shared_ptr<Milestones>& passed, Time seen) {
    Time at = seen;
    if (seen_ != nullptr && seen_ != passed) {
      const Time since = streams_->driver.elapsed(seen_->done, passed->done);
      at = std::min(seen, seen_at_ + since + since / kDrift);
    }
    seen_ = passed;
    seen_at_ = at;
    return at;
  }

  void learn(GraphShape shape, Time took) {
    const auto [entry, first] = takes_.emplace(shape, took);
    // Expecting it too early costs less than too late.
    if (!first) entry->second = std::min(took, entry->second + entry->second / 8);
  }

  const std::shared_ptr<GpuStreams> streams_;
  std::vector<GraphInput> inputs_;
  std::vector<std::size_t> input_bytes_;
  std::vector<std::size_t> outputs_;  // bytes of an item
  const std::vector<SlotMemory> slots_;
  const std::shared_ptr<const OpenShapes> open_;
  const PackedShapes* const packed_;
  std::vector<std::size_t> outputs_each_;  // and for each element of its length
  std::atomic<bool> pads_ = false;
  mutable std::mutex adding_;  // another thread adds graphs
  std::map<GraphShape, Graph> graphs_;
  std::map<GraphShape, Time> takes_;
  std::vector<std::shared_ptr<Milestones>> busy_;  // by slot: of the last batch in it
  std::vector<std::shared_ptr<Milestones>> milestones_;
  std::size_t next_ = 0, turn_ = 0;
  std::shared_ptr<Milestones> seen_;
  Time seen_at_ = 0;
};

}  // namespace astrarium::worker
