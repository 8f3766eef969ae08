// The rows that wait for a decision. Each has a slot, which is used again once it has left.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/id_map.h"
#include "exchange/row.h"

namespace astrarium::front {

struct WaitingRow {
  Row row;
  Time deadline;  // as planned
  bool waits;     // else the slot is free
};

class WaitingRows {
 public:
  std::int64_t count() const { return count_; }

  // Returns its slot.
  std::size_t add(const Row& row, Time deadline) {
    std::size_t slot = rows_.size();
    if (free_.empty()) {
      rows_.push_back({});
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    rows_[slot] = {row, deadline, true};
    ++count_;
    if (is_numbered_) slots_.add(row.number, static_cast<std::int32_t>(slot));
    return slot;
  }

  Row take(std::size_t slot) {
    WaitingRow& waiting = rows_[slot];
    waiting.waits = false;
    --count_;
    free_.push_back(slot);
    if (is_numbered_) slots_.take(waiting.row.number);
    return waiting.row;
  }

  const WaitingRow& at(std::size_t slot) const { return rows_[slot]; }

  // In the order in which they came.
  std::vector<std::size_t> slots() const {
    std::vector<std::size_t> waiting;
    for (std::size_t slot = 0; slot < rows_.size(); ++slot)
      if (rows_[slot].waits) waiting.push_back(slot);
    std::sort(waiting.begin(), waiting.end(),
              [this](std::size_t a, std::size_t b) { return rows_[a].row.number < rows_[b].row.number; });
    return waiting;
  }

  // Policies know rows by their slots, which is cheap, or by their numbers.
  void identify_by_number(bool is_numbered) {
    is_numbered_ = is_numbered;
    slots_.clear();
    if (!is_numbered_) return;
    for (const std::size_t slot : slots()) slots_.add(rows_[slot].row.number, static_cast<std::int32_t>(slot));
  }

  std::int64_t id(std::size_t slot) const {
    return is_numbered_ ? rows_[slot].row.number : static_cast<std::int64_t>(slot);
  }

  // Of one that the policy knows by this id.
  std::size_t slot_of(std::int64_t id) const {
    const std::int64_t slot = is_numbered_ ? slots_.find(id) : id;
    if (slot < 0) throw std::invalid_argument("request " + std::to_string(id) + " does not wait");
    return static_cast<std::size_t>(slot);
  }

 private:
  std::vector<WaitingRow> rows_;   // by slot
  std::vector<std::size_t> free_;  // slots
  bool is_numbered_ = false;
  IdMap slots_;  // by number
  std::int64_t count_ = 0;
};

}  // namespace astrarium::front
