// Items of unequal length one after another, in the graphs of one total: which graph they fit, what is behind them
// there, and where each one's answers are. serving/live/packing.py and serving/live/worker/packing.py say in Python
// what this does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "worker/open_shapes.h"

namespace astrarium::worker {

// The items behind a batch, which are nobody's: so many, so long in total, as equally as can be.
struct RestOfGraph {
  std::size_t items, total;

  std::size_t length(std::size_t place) const { return total / items + (place < total % items ? 1 : 0); }
};

class PackedShapes : public OpenShapes {
 public:
  // Items are from *low* to *high*, those behind a batch, too; graphs are of totals up to the *longest*.
  PackedShapes(std::vector<OpenInput> inputs, std::vector<OpenTensor> outputs, std::size_t longest, std::size_t low,
               std::size_t high)
      : OpenShapes(std::move(inputs), std::move(outputs), longest), low_(low), high_(high) {
    for (const OpenInput& input : this->inputs()) check(input.tensor);
    for (const OpenTensor& output : this->outputs()) check(output);
  }

  static std::size_t total(const OpenItems& items) {
    return std::accumulate(items.lengths.begin(), items.lengths.end(), std::size_t{0});
  }

  // What is behind *count* items of a *total* length in a graph for so many of such a length; nothing where there can
  // be no such items.
  std::optional<RestOfGraph> rest(std::size_t capacity, std::size_t length, std::size_t count,
                                  std::size_t total) const {
    if (count > capacity || total > length) return std::nullopt;
    const RestOfGraph rest{capacity - count, length - total};
    const bool fits = rest.items * low_ <= rest.total && rest.total <= rest.items * high_;
    return fits ? std::optional(rest) : std::nullopt;
  }

  // Writes a batch, and what is behind it.
  void gather_packed(const OpenItems& items, const RestOfGraph& rest, const std::vector<char*>& arrays) const {
    std::size_t sent = 0;
    for (std::size_t input = 0; input < inputs().size(); ++input) {
      const OpenTensor& tensor = inputs()[input].tensor;
      switch (inputs()[input].source) {
        case Source::kLengths: write_lengths(tensor, items, rest, arrays[input]); break;
        case Source::kOffsets: write_offsets(tensor, items, rest, arrays[input]); break;
        default: write_items(input, sent++, items, rest, arrays[input]);
      }
    }
  }

  // Writes the answers to the items; what is behind them is left out.
  void scatter_packed(const OpenItems& items, const std::vector<Member>& members, char* memory,
                      const std::vector<char*>& arrays) const {
    std::size_t offset = 0;
    for (std::size_t i = 0; i < members.size(); offset += items.lengths[i++]) {
      char* to = memory + members[i].reply;
      for (std::size_t output = 0; output < outputs().size(); ++output) {
        const OpenTensor& tensor = outputs()[output];
        const std::size_t bytes = tensor.bytes(items.lengths[i]);
        copy(to, arrays[output] + i * tensor.fixed() + offset * tensor.each(), bytes);
        to += protocol::aligned(bytes);
      }
    }
  }

 private:
  static void check(const OpenTensor& tensor) {
    if (tensor.place.value_or(0) != 0)
      throw std::invalid_argument(tensor.spec.name + ": expected nothing open but its first dimension");
  }

  // *sent* counts the inputs that clients send.
  void write_items(std::size_t input, std::size_t sent, const OpenItems& items, const RestOfGraph& rest,
                   char* to) const {
    const OpenTensor& tensor = inputs()[input].tensor;
    const std::size_t each_sent = items.inputs.size() / items.lengths.size();
    for (std::size_t i = 0; i < items.lengths.size(); ++i) {
      const std::size_t bytes = tensor.bytes(items.lengths[i]);
      copy(to, items.inputs[i * each_sent + sent], bytes);
      to += bytes;
    }
    fill(to, input, rest.items * tensor.fixed() + rest.total * tensor.each());
  }

  // What items would be padded with, over and over.
  void fill(char* to, std::size_t input, std::size_t bytes) const {
    const std::string& padding = row(input);
    if (padding.empty()) return clear(to, bytes);
    for (std::size_t part = padding.size(); bytes > 0; bytes -= part, to += part)
      copy(to, padding.data(), part = std::min(part, bytes));
  }

  static void write_lengths(const OpenTensor& tensor, const OpenItems& items, const RestOfGraph& rest, char* to) {
    for (const std::size_t length : items.lengths) write_number(tensor, std::exchange(to, to + tensor.fixed()), length);
    for (std::size_t i = 0; i < rest.items; ++i)
      write_number(tensor, std::exchange(to, to + tensor.fixed()), rest.length(i));
  }

  static void write_offsets(const OpenTensor& tensor, const OpenItems& items, const RestOfGraph& rest, char* to) {
    std::size_t offset = 0;
    write_number(tensor, to, offset);
    for (const std::size_t length : items.lengths) write_number(tensor, to += tensor.fixed(), offset += length);
    for (std::size_t i = 0; i < rest.items; ++i) write_number(tensor, to += tensor.fixed(), offset += rest.length(i));
  }

  const std::size_t low_, high_;
};

}  // namespace astrarium::worker
