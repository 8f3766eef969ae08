// The requests that a live policy may read, in the columns that it reads them in: they come and go, and slots are used
// again.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "policies/books.h"

namespace astrarium {

struct Arrival {
  std::int64_t id;  // as the caller numbers them
  int model;
  Time arrival, deadline;
  int application = 0;
  int length = 0, bucket = 0;  // of a model that has lengths
};

// Requests that wait or run, by ids of our own that only grow: policies sort by them. A slot is used again once its
// request has left; where one is still taken when its turn comes round, ids skip it.
class RequestTable {
 public:
  explicit RequestTable(std::int64_t slots = 4096) { resize(slots); }  // a power of two

  // Neighbouring ids for these; returns the first.
  std::int64_t place(const std::vector<Arrival>& arrivals) {
    const auto count = static_cast<std::int64_t>(arrivals.size());
    const std::int64_t first = free_slots(count);
    for (std::int64_t i = 0; i < count; ++i) set(first + i, arrivals[static_cast<std::size_t>(i)]);
    next_ = first + count;
    return first;
  }

  std::int64_t caller_id(std::int64_t id) const { return caller_[slot(id)]; }
  void leave(std::int64_t id) { taken_[slot(id)] = false; }

  Arrivals columns() const {
    return {{time_.data(), mask_},
            {deadline_.data(), mask_},
            {model_.data(), mask_},
            {},
            mask_ + 1,
            {application_.data(), mask_},
            {},
            {length_.data(), mask_},
            {bucket_.data(), mask_}};
  }

 private:
  std::size_t slot(std::int64_t id) const { return static_cast<std::size_t>(id & mask_); }

  void set(std::int64_t id, const Arrival& arrival) {
    const std::size_t at = slot(id);
    id_[at] = id;
    caller_[at] = arrival.id;
    taken_[at] = true;
    time_[at] = arrival.arrival;
    deadline_[at] = arrival.deadline;
    model_[at] = arrival.model;
    application_[at] = arrival.application;
    length_[at] = arrival.length;
    bucket_[at] = arrival.bucket;
  }

  std::int64_t free_slots(std::int64_t count) {
    if (count == 0) return next_;
    std::int64_t free = 0;
    for (std::int64_t id = next_; id <= next_ + mask_; ++id) {
      free = taken_[slot(id)] ? 0 : free + 1;
      if (free == count) return id + 1 - count;
    }
    grow();
    return free_slots(count);
  }

  void grow() {
    RequestTable wider(2 * (mask_ + 1));
    for (std::size_t at = 0; at < id_.size(); ++at)
      if (taken_[at])
        wider.set(id_[at],
                  {caller_[at], model_[at], time_[at], deadline_[at], application_[at], length_[at], bucket_[at]});
    wider.next_ = next_;
    *this = std::move(wider);
  }

  void resize(std::int64_t slots) {
    const auto size = static_cast<std::size_t>(slots);
    mask_ = slots - 1;
    id_.resize(size);
    caller_.resize(size);
    time_.resize(size);
    deadline_.resize(size);
    model_.resize(size);
    application_.resize(size);
    length_.resize(size);
    bucket_.resize(size);
    taken_.resize(size);
  }

  std::int64_t mask_ = 0, next_ = 0;
  std::vector<std::int64_t> id_, caller_;
  std::vector<Time> time_, deadline_;
  std::vector<std::int32_t> model_, application_, length_, bucket_;
  std::vector<bool> taken_;
};

}  // namespace astrarium
