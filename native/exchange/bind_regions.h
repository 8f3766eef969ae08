// Regions as Python sees them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exchange/regions.h"

namespace astrarium::front {

namespace nb = nanobind;

inline void bind_region(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Region>(m, "Region", "A region is memory of a client that was registered; it is there as long as this is.")
      .def_prop_ro(
          "name", [](const Region& self) { return self.what().name; }, "What it is called in requests.")
      .def_prop_ro(
          "key", [](const Region& self) { return self.what().key; }, "The shared memory object that it is part of.")
      .def_prop_ro(
          "offset", [](const Region& self) { return self.what().offset; }, "Where in that it begins.")
      .def_prop_ro(
          "size", [](const Region& self) { return self.what().size; }, "How many bytes it has.")
      .def_prop_ro("is_writable", &Region::is_writable, "Whether outputs may be written here.")
      .def(
          "read",
          [](const Region& self, std::uint64_t at, std::size_t size) -> nb::object {
            if (!self.holds(at, size)) return nb::none();
            nb::object made = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
            if (!made.is_valid()) throw nb::python_error();
            bool read = false;
            {
              nb::gil_scoped_release release;
              read = self.read(at, PyBytes_AS_STRING(made.ptr()), size);
            }
            return read ? made : nb::none();
          },
          "at"_a, "size"_a, nb::sig("def read(self, at: int, size: int) -> bytes | None"),
          "Return a copy of a part, or None where the memory has become shorter.")
      .def(
          "write",
          [](const Region& self, std::uint64_t at, nb::handle data) {
            Py_buffer bytes;
            if (PyObject_GetBuffer(data.ptr(), &bytes, PyBUF_SIMPLE) != 0) throw nb::python_error();
            bool written = false;
            {
              nb::gil_scoped_release release;
              written = self.write(at, {static_cast<const char*>(bytes.buf), static_cast<std::size_t>(bytes.len)});
            }
            PyBuffer_Release(&bytes);
            return written;
          },
          "at"_a, "data"_a, nb::sig("def write(self, at: int, data: bytes | bytearray | memoryview) -> bool"),
          "Write a part; return False where the memory has become shorter.");
}

inline void bind_regions(nb::module_& m) {
  using namespace nb::literals;
  bind_region(m);
  nb::class_<Regions>(m, "Regions",
                      "Regions are memory of clients on this machine, by owner (user and API key) and by name. A user "
                      "of -1 is any, and of -2 unknown; a key of -1 is none.")
      .def(nb::init<>())
      .def("allow", &Regions::allow, "most_bytes"_a, "local"_a,
           "Let clients register so many bytes from now on; *local*: each user of this machine for itself.")
      .def_prop_ro("allowed", &Regions::allowed, "Whether clients may register any.")
      .def_prop_ro("local", &Regions::tells_users_apart, "Whether users of this machine are told apart.")
      .def(
          "add",
          [](Regions& self, std::int64_t user, std::int64_t key, const std::string& name, const std::string& object,
             std::uint64_t offset, std::uint64_t size) {
            nb::gil_scoped_release release;
            const RegionProblem problem = self.add({user, key}, {name, object, offset, size});
            return std::pair(problem.field, problem.expected);
          },
          "user"_a, "key"_a, "name"_a, "object"_a, "offset"_a, "size"_a,
          "Register a part of a shared memory object. Return the field that is wrong, and what would be right, or two "
          "empty texts; without a field there are too many.")
      .def(
          "remove",
          [](Regions& self, std::int64_t user, std::int64_t key, const std::string& name) {
            nb::gil_scoped_release release;
            return self.remove({user, key}, name);
          },
          "user"_a, "key"_a, "name"_a, "Unregister a region, or all of an owner; return how many there were.")
      .def(
          "find",
          [](const Regions& self, std::int64_t user, std::int64_t key, const std::string& name) {
            return std::const_pointer_cast<Region>(self.find({user, key}, name));
          },
          "user"_a, "key"_a, "name"_a, nb::sig("def find(self, user: int, key: int, name: str) -> Region | None"),
          "Return the region of that name, or None where the owner has registered none.")
      .def(
          "of",
          [](const Regions& self, std::int64_t user, std::int64_t key) {
            std::vector<std::shared_ptr<Region>> found;
            for (const auto& region : self.of({user, key})) found.push_back(std::const_pointer_cast<Region>(region));
            return found;
          },
          "user"_a, "key"_a, "Return all regions of an owner, by name.")
      .def("totals", &Regions::totals, "Return how many regions there are, and how many bytes.");
}

}  // namespace astrarium::front
