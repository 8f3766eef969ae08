// A model that needs no Python: it takes the times of a table, and hands its inputs back.
// serving/live/backends/emulated.py says so in Python.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
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

// What one tensor of one item is answered with: a copy of *from*, or zeros.
struct Answer {
  char* to;
  const char* from;
  std::size_t bytes;
};

inline void write_all(const std::vector<Answer>& answers) {
  for (const Answer& answer : answers) {
    if (answer.from != nullptr) std::memmove(answer.to, answer.from, answer.bytes);
    else std::memset(answer.to, 0, answer.bytes);
  }
}

// Its GPU is never late: a batch follows the one before it without a gap, whatever the host does.
class TimedWork : public NativeBatch {
 public:
  TimedWork(Time takes, std::vector<Answer> answers) : takes_(takes), answers_(std::move(answers)) {}

  std::optional<Ran> run(Time free, Time not_before, BatchWait& waiting) override {
    const Time began = std::max(free, not_before), ended = began + takes_;
    if (!waiting.until(ended)) return std::nullopt;
    return Ran{began, ended};
  }
  void answer() override { write_all(answers_); }

 private:
  Time takes_;
  std::vector<Answer> answers_;
};

class TimedModel : public NativeModel {
 public:
  // *sources* are the places of the inputs that are handed back as each output, or -1.
  TimedModel(std::vector<Time> table, std::vector<Spec> inputs, std::vector<Spec> outputs, std::vector<int> sources)
      : table_(std::move(table)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)),
        sources_(std::move(sources)) {
    for (const Spec& spec : outputs_) {
      open_ |= is_open(spec);
      zeros_.push_back(zeros_of(spec));
    }
  }

  std::unique_ptr<NativeBatch> batch(const Memory& memory, const RunBatch& order) override {
    std::string shapes;
    const auto time = takes(order.members.size());
    auto batch_answers = answers(memory, order, shapes);
    if (!time || !batch_answers) return nullptr;
    auto work = std::make_unique<TimedWork>(*time, std::move(*batch_answers));
    work->shapes = std::move(shapes);
    return work;
  }

 private:
  // How long a batch of this size takes; nothing where the table does not say it.
  std::optional<Time> takes(std::size_t size) const {
    if (size == 0 || size >= table_.size() || table_[size] < 0 || table_[size] > kLongest) return std::nullopt;
    return table_[size];
  }

  // How a batch is answered, and the shapes of that as news tell them; nothing where something is wrong with the order.
  std::optional<std::vector<Answer>> answers(const Memory& memory, const RunBatch& order, std::string& shapes) const {
    std::vector<Answer> batch_answers;
    protocol::PackWriter pack(shapes);
    if (open_) pack.array(order.members.size());
    else pack.nil();
    for (std::size_t place = 0; place < order.members.size(); ++place) {
      const Member& member = order.members[place];
      const auto items = items_of(memory, member, order.shapes.empty() ? nullptr : &order.shapes[place]);
      if (!items || !answer(memory, member, *items, batch_answers)) return std::nullopt;
      if (open_) append_shapes(pack, *items);
    }
    return batch_answers;
  }

  static constexpr Time kLongest = Time{1} << 61;
  static constexpr std::size_t kMostBytes = std::size_t{1} << 48;

  // A tensor of one item of a batch.
  struct Item {
    const char* data;
    Shape shape;  // without the batch
    std::size_t bytes;
  };

  static bool is_open(const Spec& spec) {
    for (const std::int64_t length : spec.item)
      if (length < 0) return true;
    return false;
  }

  // Shape and bytes of one item; nothing where they are not what the model takes.
  static std::optional<Item> item_of(const Spec& spec, const Member& member, const Written* written, std::size_t most) {
    Shape whole{member.rows};
    if (written != nullptr) whole = written->shape;
    else whole.insert(whole.end(), spec.item.begin(), spec.item.end());
    const auto bytes = spec.bytes(whole, most);
    if (!bytes || whole[0] != member.rows || (written != nullptr && *bytes != written->bytes)) return std::nullopt;
    return Item{nullptr, Shape(whole.begin() + 1, whole.end()), *bytes / static_cast<std::size_t>(member.rows)};
  }

  std::optional<std::vector<Item>> items_of(const Memory& memory, const Member& member,
                                            const std::vector<Written>* written) const {
    if (member.row < 0 || member.row >= member.rows) return std::nullopt;
    if (written != nullptr && written->size() != inputs_.size()) return std::nullopt;
    std::vector<Item> items;
    Wide at = member.block;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      auto item = item_of(inputs_[i], member, written == nullptr ? nullptr : &(*written)[i], memory.size);
      if (!item) return std::nullopt;
      const Wide bytes = static_cast<Wide>(item->bytes) * member.rows;
      if (!memory.holds(at, bytes)) return std::nullopt;
      item->data = memory.data + static_cast<std::size_t>(at) + static_cast<std::size_t>(member.row) * item->bytes;
      items.push_back(std::move(*item));
      at += protocol::aligned_wide(bytes);
    }
    return items;
  }

  // Zeros have one element where the size is open.
  static Item zeros_of(const Spec& spec) {
    Item zeros{nullptr, spec.item, 0};
    for (std::int64_t& length : zeros.shape) length = length < 0 ? 1 : length;
    Shape whole{1};
    whole.insert(whole.end(), zeros.shape.begin(), zeros.shape.end());
    zeros.bytes = spec.bytes(whole, kMostBytes).value_or(kMostBytes);
    return zeros;
  }

  const Item& output_of(std::size_t output, const std::vector<Item>& items) const {
    const int source = sources_[output];
    return source < 0 ? zeros_[output] : items[static_cast<std::size_t>(source)];
  }

  bool answer(const Memory& memory, const Member& member, const std::vector<Item>& items,
              std::vector<Answer>& batch_answers) const {
    if (!memory.holds(member.reply, member.reply_bytes)) return false;
    Wide at = 0;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const Item& item = output_of(i, items);
      if (at + static_cast<Wide>(item.bytes) > member.reply_bytes) return false;
      batch_answers.push_back(
          {memory.data + static_cast<std::size_t>(member.reply) + static_cast<std::size_t>(at), item.data, item.bytes});
      at += protocol::aligned_wide(static_cast<Wide>(item.bytes));
    }
    return true;
  }

  void append_shapes(protocol::PackWriter& pack, const std::vector<Item>& items) const {
    pack.array(outputs_.size());
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const Item& item = output_of(i, items);
      pack.array(2);
      pack.array(item.shape.size() + 1);
      pack.number(1);
      for (const std::int64_t length : item.shape) pack.number(static_cast<std::uint64_t>(length));
      pack.number(item.bytes);
    }
  }

  std::vector<Time> table_;
  std::vector<Spec> inputs_, outputs_;
  std::vector<int> sources_;
  std::vector<Item> zeros_;  // by output
  bool open_ = false;        // whether some output's shape is not known beforehand
};

}  // namespace astrarium::worker
