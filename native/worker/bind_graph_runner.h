// Models in CUDA graphs as Python sees them, which makes graphs and memory.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tensors/bind_tensors.h"
#include "worker/bind_specs.h"
#include "worker/graph_model.h"
#include "worker/rehearsal.h"

namespace astrarium::worker {

namespace nb = nanobind;

using Addresses = std::vector<std::uintptr_t>;
using SlotAddresses = std::tuple<Addresses, Addresses, Addresses, Addresses>;  // as in SlotMemory

inline Handle handle_at(std::uintptr_t address) { return reinterpret_cast<Handle>(address); }

inline std::vector<char*> on_host(const Addresses& addresses) {
  std::vector<char*> pointers;
  for (const std::uintptr_t address : addresses) pointers.push_back(reinterpret_cast<char*>(address));
  return pointers;
}
inline std::vector<DevicePointer> on_device(const Addresses& addresses) { return {addresses.begin(), addresses.end()}; }

using InputRow = std::tuple<std::string, nb::bytes>;  // who fills an input, and one element of padding or mask

inline Source source_of(const std::string& fill) {
  if (fill.empty()) return Source::kSent;
  if (fill == "mask") return Source::kMask;
  if (fill == "lengths") return Source::kLengths;
  if (fill == "offsets") return Source::kOffsets;
  throw std::invalid_argument("fill: expected nothing, mask, lengths or offsets, got " + fill);
}

inline std::shared_ptr<OpenShapes> new_open_shapes(const std::vector<SpecRow>& inputs,
                                                   const std::vector<InputRow>& fills,
                                                   const std::vector<SpecRow>& outputs, std::size_t longest,
                                                   const std::optional<std::pair<std::size_t, std::size_t>>& packed) {
  if (fills.size() != inputs.size()) throw std::invalid_argument("fills: expected one for each input");
  std::vector<OpenInput> open_inputs;
  for (const auto& spec : specs_of(inputs)) {
    const auto& [fill, element] = fills[open_inputs.size()];
    open_inputs.push_back({OpenTensor(spec), source_of(fill), std::string(element.c_str(), element.size())});
  }
  std::vector<OpenTensor> open_outputs;
  for (const auto& spec : specs_of(outputs)) open_outputs.emplace_back(spec);
  if (packed)
    return std::make_shared<PackedShapes>(std::move(open_inputs), std::move(open_outputs), longest, packed->first,
                                          packed->second);
  return std::make_shared<OpenShapes>(std::move(open_inputs), std::move(open_outputs), longest);
}

inline std::shared_ptr<GraphRunner> new_runner(std::shared_ptr<GpuStreams> streams,
                                               const std::vector<std::pair<std::uintptr_t, std::size_t>>& inputs,
                                               std::vector<std::size_t> outputs,
                                               const std::vector<SlotAddresses>& slots,
                                               std::shared_ptr<OpenShapes> open, const Addresses& rests) {
  if (!rests.empty() && rests.size() != inputs.size())
    throw std::invalid_argument("rests: expected one for each input");
  std::vector<GraphInput> graph_inputs;
  for (const auto& [device, item] : inputs)
    graph_inputs.push_back({.device = device, .item = item, .rest = rests.empty() ? 0 : rests[graph_inputs.size()]});
  std::vector<SlotMemory> memory;
  for (const auto& [in, staged, results, out] : slots)
    memory.push_back({on_host(in), on_device(staged), on_device(results), on_host(out)});
  return std::make_shared<GraphRunner>(std::move(streams), std::move(graph_inputs), std::move(outputs),
                                       std::move(memory), std::move(open));
}

inline std::vector<nb::bytes> rehearse_graphs(nb::handle shared, std::shared_ptr<GraphRunner> runner,
                                              const nb::bytes& order, int times) {
  const protocol::Bytes memory(shared, PyBUF_WRITABLE);
  const std::string packet(order.c_str(), order.size());
  std::vector<std::string> news;
  {
    const nb::gil_scoped_release release;
    news =
        rehearse({memory.data(), memory.view().size()}, std::make_shared<GraphModel>(std::move(runner)), packet, times);
  }
  std::vector<nb::bytes> packets;
  for (const std::string& one : news) packets.emplace_back(one.data(), one.size());
  return packets;
}

inline void bind_graph_runner(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<GpuStreams>(m, "GpuStreams", "A GPU's streams, the same for all models: their batches run one by one.")
      .def(
          "__init__",
          [](GpuStreams* self, const std::string& library, std::uintptr_t copy_in, std::uintptr_t compute,
             std::uintptr_t copy_out) {
            new (self) GpuStreams(library, handle_at(copy_in), handle_at(compute), handle_at(copy_out));
          },
          "library"_a, "copy_in"_a, "compute"_a, "copy_out"_a);
  nb::class_<OpenShapes>(m, "OpenShapes", "The tensors of a model whose items have a length, one open dimension each.")
      .def(nb::new_(&new_open_shapes), "inputs"_a, "fills"_a, "outputs"_a, "longest"_a, "packed"_a = nb::none(),
           "Take of each input who fills it (mask, lengths, offsets, or nothing where clients send it), and the bytes "
           "of one element: of its padding, or of a mask's one. Graphs are of lengths up to the longest. Of packed "
           "items, which are from one length to another, that is what all have together.");
  nb::class_<GraphRunner>(
      m, "GraphRunner",
      "A runner replays a model's CUDA graphs, some batches in flight at once: each has memory in a "
      "slot. Whoever makes graphs and memory keeps them alive until it has finished.")
      .def(nb::new_(&new_runner), "streams"_a, "inputs"_a, "outputs"_a, "slots"_a, "open"_a.none() = nb::none(),
           "rests"_a = Addresses(),
           "Take of each input its address and the bytes of an item, of each output the bytes, and of each slot "
           "addresses. The bytes of open tensors follow from their shapes. The rests are by input: the address of "
           "rows for behind a batch, 0 where these are zeros.")
      .def(
          "add",
          [](GraphRunner& self, int capacity, std::uintptr_t graph, const Addresses& outputs, int length) {
            self.add(capacity, handle_at(graph), on_device(outputs), length);
          },
          "capacity"_a, "graph"_a, "outputs"_a, "length"_a = 0,
          "Add a graph for batches of up to this size, and the addresses where it leaves its outputs.")
      .def("allow_padding", &GraphRunner::allow_padding,
           "Pad items to the length of a graph from now on: that changes no answers of this model.")
      .def("takes", &GraphRunner::takes, "size"_a, "length"_a = 0,
           "Return whether there is a graph for a batch of this size, of items of this length: in total, where they "
           "are packed.")
      .def(
          "rehearse",
          [](std::shared_ptr<GraphRunner> self, nb::handle memory, const nb::bytes& order, int times) {
            return rehearse_graphs(memory, std::move(self), order, times);
          },
          "memory"_a, "order"_a, "times"_a,
          nb::sig("def rehearse(self, memory: Buffer, order: bytes, times: int) -> list[bytes]"),
          "Run the batch of an order so many times in a row, and return what a worker would say of it.")
      .def("finish", &GraphRunner::finish, nb::call_guard<nb::gil_scoped_release>(),
           "Wait for all that the GPU was given, also for cancelled batches: the memory can go after that.");
}

}  // namespace astrarium::worker
