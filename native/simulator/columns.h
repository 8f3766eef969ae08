// Columns of Python's arrays, read where they lie, and handed over without a copy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "policies/books.h"

namespace astrarium {

namespace nb = nanobind;

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::object column(std::vector<T>&& values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

// The requests of a run; the last ones may be missing where nothing asks for them.
struct RequestColumns {
  Column<Time> time, deadline;
  Column<std::int32_t> model;
  Column<Time> work;
  std::optional<Column<std::int32_t>> application;
  std::optional<Column<bool>> profiled;
  std::optional<Column<std::int32_t>> length = {}, bucket = {};

  Arrivals arrivals() const {
    return {time.data(),
            deadline.data(),
            model.data(),
            work.data(),
            static_cast<std::int64_t>(time.size()),
            application ? application->data() : nullptr,
            profiled ? profiled->data() : nullptr,
            length ? length->data() : nullptr,
            bucket ? bucket->data() : nullptr};
  }
};

inline nb::dict record(Books&& books) {
  Requests& requests = books.requests;
  Batches& batches = books.batches;
  nb::dict out;  // the columns are moved: nothing is copied
  out["outcome"] = column(std::move(requests.outcome));
  out["reason"] = column(std::move(requests.reason));
  out["done"] = column(std::move(requests.done));
  out["batch"] = column(std::move(requests.batch));
  out["batch_model"] = column(std::move(batches.model));
  out["batch_gpu"] = column(std::move(batches.gpu));
  out["batch_size"] = column(std::move(batches.size));
  out["batch_dispatched"] = column(std::move(batches.dispatched));
  out["batch_started"] = column(std::move(batches.started));
  out["batch_finished"] = column(std::move(batches.finished));
  out["batch_fate"] = column(std::move(batches.fate));
  out["bad"] = column(std::vector<std::int64_t>(books.bad()));
  return out;
}

}  // namespace astrarium
