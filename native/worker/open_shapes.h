// Items of unequal length in the graphs of one: how they are padded, what the server fills in, and how their answers
// are cut. serving/live/worker/padding.py and serving/live/fills.py say in Python what this does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "messages/pack_writer.h"
#include "tensors/model.h"
#include "worker/native_batch.h"

namespace astrarium::worker {

using protocol::Shape;
using protocol::Spec;
using protocol::Wide;

// A tensor with an open dimension, or none. An item of some length has pieces one behind the other, each with so many
// bytes for every element of its length.
struct OpenTensor {
  explicit OpenTensor(Spec given) : spec(std::move(given)), unit(spec.type->bytes) {
    for (std::size_t axis = 0; axis < spec.item.size(); ++axis) {
      if (spec.item[axis] >= 0) (place ? unit : pieces) *= static_cast<std::size_t>(spec.item[axis]);
      else if (place) throw std::invalid_argument(spec.name + ": expected one open dimension at most");
      else place = axis;
    }
  }

  std::size_t fixed() const { return place ? 0 : pieces * unit; }
  std::size_t each() const { return place ? pieces * unit : 0; }  // element of the length
  std::size_t bytes(std::size_t length) const { return fixed() + each() * length; }

  Spec spec;
  std::optional<std::size_t> place;  // of the open dimension
  std::size_t pieces = 1, unit;
};

enum class Source { kSent, kMask, kLengths, kOffsets };

struct OpenInput {
  OpenTensor tensor;
  Source source;
  std::string element;  // what items are padded with; of a mask, what it has where an item has something
};

// The items of a batch: how long each is, and where its inputs are, of those that clients send.
struct OpenItems {
  std::vector<std::size_t> lengths;
  std::vector<const char*> inputs;  // by item and input
};

class OpenShapes {
 public:
  // Graphs are of lengths up to the *longest*.
  OpenShapes(std::vector<OpenInput> inputs, std::vector<OpenTensor> outputs, std::size_t longest)
      : inputs_(std::move(inputs)), outputs_(std::move(outputs)), longest_(longest) {
    for (const OpenInput& input : inputs_) {
      rows_.push_back(row_of(input, longest));
      sent_ += input.source == Source::kSent;
    }
    for (const OpenTensor& output : outputs_) answers_are_open_ |= output.place.has_value();
  }

  virtual ~OpenShapes() = default;

  const std::vector<OpenInput>& inputs() const { return inputs_; }
  const std::vector<OpenTensor>& outputs() const { return outputs_; }
  std::size_t longest() const { return longest_; }

  // Whether rows behind a batch need something else than zeros.
  bool fills_rest(std::size_t input) const { return inputs_[input].source != Source::kSent || !rows_[input].empty(); }

  // Nothing where something is wrong with the order, or an item has not one length in all of its inputs.
  std::optional<OpenItems> items(const Memory& memory, const RunBatch& order) const {
    if (order.shapes.size() != order.members.size()) return std::nullopt;
    OpenItems items;
    for (std::size_t place = 0; place < order.members.size(); ++place)
      if (!add(memory, order.members[place], order.shapes[place], items) ||
          !has_room(memory, order.members[place], items.lengths.back()))
        return std::nullopt;
    return items;
  }

  // Writes a batch of this *length*, with *capacity* rows.
  void gather(const OpenItems& items, std::size_t length, std::size_t capacity,
              const std::vector<char*>& arrays) const {
    std::size_t sent = 0;
    for (std::size_t input = 0; input < inputs_.size(); ++input) {
      const std::size_t row = inputs_[input].tensor.bytes(length);
      char* to = arrays[input];
      for (std::size_t i = 0; i < items.lengths.size(); ++i, to += row)
        write(input, to, items.inputs.data() + i * sent_ + sent, items.lengths[i], length);
      if (fills_rest(input))
        for (std::size_t i = items.lengths.size(); i < capacity; ++i, to += row) write_rest(input, to, length);
      sent += inputs_[input].source == Source::kSent;
    }
  }

  // Writes the answers of a batch of this *length*, each cut to its item's own.
  void scatter(const OpenItems& items, std::size_t length, const std::vector<Member>& members, char* memory,
               const std::vector<char*>& arrays) const {
    for (std::size_t i = 0; i < members.size(); ++i) {
      char* to = memory + members[i].reply;
      for (std::size_t output = 0; output < outputs_.size(); ++output) {
        const OpenTensor& tensor = outputs_[output];
        cut(tensor, to, arrays[output] + i * tensor.bytes(length), items.lengths[i], length);
        to += protocol::aligned(tensor.bytes(items.lengths[i]));
      }
    }
  }

  // The shapes of the answers as news tell them: nothing where the model's own say it all.
  std::string shapes(const OpenItems& items) const {
    std::string text;
    protocol::PackWriter pack(text);
    if (!answers_are_open_) return pack.nil(), text;
    pack.array(items.lengths.size());
    for (const std::size_t length : items.lengths) {
      pack.array(outputs_.size());
      for (const OpenTensor& output : outputs_) append(pack, output, length);
    }
    return text;
  }

 protected:
  // What items of an input are padded with, as long as the longest; nothing for zeros.
  const std::string& row(std::size_t input) const { return rows_[input]; }

  static void write_number(const OpenTensor& tensor, char* to, std::size_t number) {
    const auto wide = static_cast<std::int64_t>(number);
    copy(to, reinterpret_cast<const char*>(&wide), tensor.fixed());  // little-endian, as tensors/batch_copy.h asserts
  }

  static void copy(char* to, const char* from, std::size_t bytes) {
    if (bytes) std::memcpy(to, from, bytes);
  }
  static void clear(char* to, std::size_t bytes) {
    if (bytes) std::memset(to, 0, bytes);
  }

 private:
  static bool is_number(const OpenInput& input) {
    return input.source == Source::kLengths || input.source == Source::kOffsets;
  }

  // The longest row of what rows are padded or filled with; nothing for zeros.
  static std::string row_of(const OpenInput& input, std::size_t longest) {
    const bool zeros = input.element.find_first_not_of('\0') == std::string::npos;
    if (is_number(input) && input.tensor.bytes(longest) > sizeof(std::int64_t))
      throw std::invalid_argument(input.tensor.spec.name + ": expected one whole number for each item");
    if (is_number(input) || (input.source == Source::kSent && zeros)) return {};
    if (input.element.size() != input.tensor.spec.type->bytes)
      throw std::invalid_argument(input.tensor.spec.name + ": expected the bytes of one element");
    std::string row;
    while (row.size() < input.tensor.bytes(longest)) row += input.element;
    return row;
  }

  bool add(const Memory& memory, const Member& member, const std::vector<Written>& written, OpenItems& items) const {
    if (member.row < 0 || member.row >= member.rows || written.size() != sent_) return false;
    std::optional<std::size_t> length;
    auto next = written.begin();
    Wide at = member.block;
    for (const OpenInput& input : inputs_) {
      if (input.source != Source::kSent) continue;
      const Written& tensor = *next++;
      const auto own = length_in(input.tensor, tensor, member.rows, memory.size);
      if (!own || !memory.holds(at, static_cast<Wide>(tensor.bytes))) return false;
      if (input.tensor.place && length && *length != *own) return false;
      if (input.tensor.place) length = own;
      const std::size_t item = tensor.bytes / static_cast<std::size_t>(member.rows);
      items.inputs.push_back(memory.data + static_cast<std::size_t>(at) + static_cast<std::size_t>(member.row) * item);
      at += protocol::aligned_wide(static_cast<Wide>(tensor.bytes));
    }
    if (length) items.lengths.push_back(*length);
    return length.has_value();
  }

  // How long the items of a tensor are, 0 where it is not open; nothing where it is not what the model takes.
  static std::optional<std::size_t> length_in(const OpenTensor& tensor, const Written& written, std::int64_t rows,
                                              std::size_t most) {
    const auto bytes = tensor.spec.bytes(written.shape, most);
    if (!bytes || written.shape[0] != rows || *bytes != written.bytes) return std::nullopt;
    return tensor.place ? static_cast<std::size_t>(written.shape[1 + *tensor.place]) : 0;
  }

  bool has_room(const Memory& memory, const Member& member, std::size_t length) const {
    if (!memory.holds(member.reply, member.reply_bytes)) return false;
    Wide needed = 0;
    for (const OpenTensor& output : outputs_)
      needed = protocol::aligned_wide(needed) + static_cast<Wide>(output.bytes(length));
    return needed <= member.reply_bytes;
  }

  // *item* is where the item's input is, if clients send it.
  void write(std::size_t input, char* to, const char* const* item, std::size_t own, std::size_t length) const {
    const OpenTensor& tensor = inputs_[input].tensor;
    switch (inputs_[input].source) {
      case Source::kSent: return pad(tensor, to, *item, own, length, rows_[input]);
      case Source::kMask: return mark(tensor, to, rows_[input], own, length);
      case Source::kLengths: return write_number(tensor, to, own);
      case Source::kOffsets: return;  // of packed items, which are no rows
    }
  }

  // What is behind a batch seems to be as long as the others: a mask of nothing but zeros makes many models divide by
  // zero.
  void write_rest(std::size_t input, char* to, std::size_t length) const {
    const OpenTensor& tensor = inputs_[input].tensor;
    if (inputs_[input].source == Source::kLengths) write_number(tensor, to, length);
    else copy(to, rows_[input].data(), tensor.bytes(length));
  }

  static void pad(const OpenTensor& tensor, char* to, const char* item, std::size_t own, std::size_t length,
                  const std::string& padding) {
    if (!tensor.place) return copy(to, item, tensor.fixed());
    const std::size_t kept = own * tensor.unit, rest = (length - own) * tensor.unit;
    for (std::size_t piece = 0; piece < tensor.pieces; ++piece, item += kept, to += kept + rest) {
      copy(to, item, kept);
      if (padding.empty()) clear(to + kept, rest);
      else copy(to + kept, padding.data(), rest);
    }
  }

  static void mark(const OpenTensor& tensor, char* to, const std::string& ones, std::size_t own, std::size_t length) {
    const std::size_t kept = own * tensor.unit, rest = (length - own) * tensor.unit;
    for (std::size_t piece = 0; piece < tensor.pieces; ++piece, to += kept + rest) {
      copy(to, ones.data(), kept);
      clear(to + kept, rest);
    }
  }

  static void cut(const OpenTensor& tensor, char* to, const char* from, std::size_t own, std::size_t length) {
    if (!tensor.place) return copy(to, from, tensor.fixed());
    const std::size_t kept = own * tensor.unit;
    for (std::size_t piece = 0; piece < tensor.pieces; ++piece, to += kept, from += length * tensor.unit)
      copy(to, from, kept);
  }

  static void append(protocol::PackWriter& pack, const OpenTensor& output, std::size_t length) {
    pack.array(2);
    pack.array(output.spec.item.size() + 1);
    pack.number(1);
    for (const std::int64_t size : output.spec.item) pack.number(size < 0 ? length : static_cast<std::uint64_t>(size));
    pack.number(output.bytes(length));
  }

  const std::vector<OpenInput> inputs_;
  const std::vector<OpenTensor> outputs_;
  const std::size_t longest_;
  std::vector<std::string> rows_;  // by input
  std::size_t sent_ = 0;           // inputs that clients send
  bool answers_are_open_ = false;
};

}  // namespace astrarium::worker
