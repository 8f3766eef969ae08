// HullQueue as Python sees it: for tests and benchmarks, which also want many steps in one call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <vector>

#include "policies/orloj/hull.h"

namespace astrarium {

using Points = nanobind::ndarray<const double, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using Slopes = nanobind::ndarray<const double, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

inline void insert_all(HullQueue& queue, std::int64_t first, Points points) {
  if (points.shape(1) != 2) throw std::invalid_argument("points must have two columns: alpha and beta");
  for (std::size_t row = 0; row < points.shape(0); ++row)
    queue.insert(first + static_cast<std::int64_t>(row), points(row, 0), points(row, 1));
}

inline void remove_all(HullQueue& queue, std::int64_t first, std::int64_t count) {
  for (std::int64_t id = first; id < first + count; ++id) queue.remove(id);
}

inline std::vector<std::int64_t> best_of_all(const HullQueue& queue, Slopes slopes) {
  std::vector<std::int64_t> ids(slopes.shape(0));
  for (std::size_t row = 0; row < slopes.shape(0); ++row) ids[row] = queue.best(slopes(row));
  return ids;
}

inline void bind_hull(nanobind::module_& m) {
  using namespace nanobind::literals;
  nanobind::class_<HullQueue>(m, "HullQueue",
                              "Twin of serving.policies.orloj.hull.HullQueue, with many steps in one call.")
      .def(nanobind::init<>())
      .def("__len__", &HullQueue::size)
      .def("__contains__", &HullQueue::contains, "id"_a)
      .def("insert", &HullQueue::insert, "id"_a, "alpha"_a, "beta"_a, "Add a member with its line.")
      .def("remove", &HullQueue::remove, "id"_a, "Remove a member.")
      .def("best", &HullQueue::best, "slope"_a, "Return the member that is best at a slope.")
      .def("clear", &HullQueue::clear, "Remove all members.")
      .def("depth", &HullQueue::depth, "Return how many inner nodes lead to the deepest leaf.")
      .def("insert_all", &insert_all, "first"_a, "points"_a,
           nanobind::sig("def insert_all(self, first: int, points: Floats) -> None"),
           "Add members with the lines in the rows, alpha and beta; their ids count up from *first*.")
      .def("remove_all", &remove_all, "first"_a, "count"_a, "Remove so many members whose ids count up from *first*.")
      .def("best_of_all", &best_of_all, "slopes"_a, nanobind::sig("def best_of_all(self, slopes: Floats) -> list[int]"),
           "Return the best member at each slope.");
}

}  // namespace astrarium
