// Tensors of requests that go the long way, as Python sees them. All of this runs without Python's lock.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "tensors/batch_copy.h"
#include "tensors/bytes_layout.h"
#include "tensors/json/large_tensor.h"
#include "tensors/json/outline.h"
#include "tensors/model.h"
#include "tensors/proto_tensor.h"

namespace astrarium::protocol {

namespace nb = nanobind;

// The bytes of anything that has some, for as long as this lives.
class Bytes {
 public:
  explicit Bytes(nb::handle from, int flags = PyBUF_SIMPLE) {
    if (PyObject_GetBuffer(from.ptr(), &buffer_, flags) != 0) throw nb::python_error();
  }
  ~Bytes() {
    if (buffer_.obj != nullptr) PyBuffer_Release(&buffer_);
  }
  Bytes(Bytes&& other) noexcept : buffer_(std::exchange(other.buffer_, Py_buffer{})) {}
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  std::string_view view() const {
    return {static_cast<const char*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }
  char* data() const { return static_cast<char*>(buffer_.buf); }

 private:
  Py_buffer buffer_{};
};

// Bytes that are filled in before anybody else sees them.
inline nb::object new_bytes(std::size_t size) {
  nb::object made = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

inline nb::object copied(const std::string& text) {
  nb::object made = new_bytes(text.size());
  nb::gil_scoped_release release;
  std::memcpy(PyBytes_AS_STRING(made.ptr()), text.data(), text.size());
  return made;
}

inline std::pair<std::size_t, std::size_t> count_elements(nb::handle data, std::size_t most) {
  const Bytes bytes(data);
  nb::gil_scoped_release release;
  return bytes_elements(bytes.view(), most);
}

inline nb::object unpack_bytes(nb::handle data) {
  const Bytes bytes(data);
  const std::string_view all = bytes.view();
  const auto [count, end] = bytes_elements(all, all.size());
  if (end != all.size()) return nb::none();
  nb::object made = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!made.is_valid()) throw nb::python_error();
  std::size_t at = 0;
  for (std::size_t place = 0; place < count; ++place) {
    std::uint32_t length;
    std::memcpy(&length, all.data() + at, sizeof length);
    PyObject* element = PyBytes_FromStringAndSize(all.data() + at + sizeof length, length);
    if (element == nullptr) throw nb::python_error();
    PyList_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(place), element);
    at += sizeof length + length;
  }
  return made;
}

inline nb::object pack_bytes(nb::list elements) {
  std::size_t size = 0;
  for (nb::handle element : elements) {
    if (!PyBytes_Check(element.ptr())) return nb::none();
    size += sizeof(std::uint32_t) + static_cast<std::size_t>(PyBytes_GET_SIZE(element.ptr()));
  }
  nb::object made = new_bytes(size);
  char* out = PyBytes_AS_STRING(made.ptr());
  for (nb::handle element : elements) {
    const auto length = static_cast<std::uint32_t>(PyBytes_GET_SIZE(element.ptr()));
    std::memcpy(out, &length, sizeof length);
    std::memcpy(out + sizeof length, PyBytes_AS_STRING(element.ptr()), length);
    out += sizeof length + length;
  }
  return made;
}

inline nb::object outline(nb::handle json) {
  const Bytes bytes(json);
  JsonOutline outline(bytes.view());
  bool whole = false;
  {
    nb::gil_scoped_release release;
    whole = outline.cut();
  }
  if (!whole) return nb::int_(outline.stopped());
  nb::list pieces;
  for (const auto& [begin, end] : outline.pieces) pieces.append(nb::make_tuple(begin, end));
  return nb::make_tuple(copied(outline.text), pieces);
}

inline nb::object from_json(nb::handle json, const std::string& type, const Shape& shape) {
  const Datatype* known = datatype(type);
  if (known == nullptr || known->kind == Kind::kF16) throw std::invalid_argument("no datatype " + type);
  const Bytes bytes(json);
  JsonTensor tensor(bytes.view(), known->kind, shape);
  std::size_t size = known->bytes;
  for (const std::int64_t length : shape) size *= static_cast<std::size_t>(length);
  nb::object made = new_bytes(size);
  bool right = false;
  {
    nb::gil_scoped_release release;
    right = tensor.parse(PyBytes_AS_STRING(made.ptr()));
  }
  if (!right) return nb::make_tuple(tensor.read, tensor.stopped());
  return known->kind == Kind::kBytes ? copied(tensor.made) : made;
}

inline nb::object to_json(nb::handle data, const std::string& type) {
  const Datatype* known = datatype(type);
  if (known == nullptr || known->kind == Kind::kF16) throw std::invalid_argument("no datatype " + type);
  const Bytes bytes(data);
  JsonTensorWriter writer(bytes.view());
  bool right = false;
  {
    nb::gil_scoped_release release;
    right = writer.write(known->kind);
  }
  if (!right) return nb::int_(writer.written);
  return copied(writer.json);
}

inline nb::object message_outline(nb::handle message, std::size_t most) {
  const Bytes bytes(message);
  ProtoOutline outline(bytes.view(), most);
  const bool whole = outline.cut();
  if (outline.too_large()) return nb::bool_(false);
  if (!whole) return nb::none();
  const auto places = [](const std::vector<Range>& ranges) {
    nb::list rows;
    for (const auto& [begin, end] : ranges) rows.append(nb::make_tuple(begin, end));
    return rows;
  };
  nb::list contents;
  for (const auto& ranges : outline.contents) contents.append(places(ranges));
  return nb::make_tuple(copied(outline.text), places(outline.raw), contents);
}

inline nb::object from_contents(nb::handle contents, const std::string& type, std::size_t elements) {
  const Datatype* known = datatype(type);
  if (known == nullptr || known->kind == Kind::kF16) throw std::invalid_argument("no datatype " + type);
  const Bytes bytes(contents);
  ProtoTensor tensor(known->kind, elements);
  nb::object made = new_bytes(known->bytes * elements);
  bool right = false;
  {
    nb::gil_scoped_release release;
    right = tensor.parse(bytes.view(), PyBytes_AS_STRING(made.ptr()));
  }
  if (!right) return nb::int_(tensor.read);
  return known->kind == Kind::kBytes ? copied(tensor.made) : made;
}

inline nb::object first_outside_of(nb::handle data, const std::string& type, std::int64_t low, std::int64_t high) {
  const Datatype* known = datatype(type);
  if (known == nullptr) throw std::invalid_argument("no datatype " + type);
  const Bytes bytes(data);
  std::size_t first = kAllInside;
  {
    nb::gil_scoped_release release;
    first = first_outside(bytes.view(), known->kind, {low, high, {}});
  }
  return first == kAllInside ? nb::none() : nb::object(nb::int_(first));
}

// The arrays that a batch's items go to or come from: one for each input or output.
struct Arrays {
  std::vector<Bytes> bytes;
  std::vector<std::size_t> sizes;
  std::vector<char*> data;

  Arrays(nb::list given, int flags) {
    bytes.reserve(given.size());
    for (nb::handle array : given) {
      const Bytes& added = bytes.emplace_back(array, flags);
      sizes.push_back(added.view().size());
      data.push_back(added.data());
    }
  }
};

// Copy the items of a batch from their blocks in *memory* into the arrays; *sizes* are the bytes of an item of each.
inline void gather(nb::handle memory, nb::bytes members, const std::vector<std::size_t>& sizes, nb::list arrays) {
  const Bytes from(memory);
  const Arrays to(arrays, PyBUF_WRITABLE);
  const std::string_view packed(members.c_str(), members.size());
  nb::gil_scoped_release release;
  const std::vector<Member> all = unpacked(packed);
  check_arrays(sizes, to.sizes, all.size());
  copy_all(gathering(from.view(), all, sizes, to.data));
}

// Copy the items of the arrays into the members' blocks for replies in *memory*.
inline void scatter(nb::handle memory, nb::bytes members, const std::vector<std::size_t>& sizes, nb::list arrays) {
  const Bytes to(memory, PyBUF_WRITABLE);
  const Arrays from(arrays, PyBUF_SIMPLE);
  const std::string_view packed(members.c_str(), members.size());
  nb::gil_scoped_release release;
  const std::vector<Member> all = unpacked(packed);
  check_arrays(sizes, from.sizes, all.size());
  copy_all(scattering(to.data(), to.view().size(), all, sizes, from.data));
}

inline void bind_copies(nb::module_& m) {
  using namespace nb::literals;
  m.def(
      "gather", &gather, "memory"_a, "members"_a, "sizes"_a, "arrays"_a,
      nb::sig("def gather(memory: Buffer, members: bytes, sizes: collections.abc.Sequence[int], arrays: list[Buffer]) "
              "-> None"),
      "Copy the items of a batch from shared memory into arrays, one for each input; sizes are the bytes of an item.");
  m.def(
      "scatter", &scatter, "memory"_a, "members"_a, "sizes"_a, "arrays"_a,
      nb::sig("def scatter(memory: Buffer, members: bytes, sizes: collections.abc.Sequence[int], arrays: list[Buffer]) "
              "-> None"),
      "Copy the items of a batch from arrays, one for each output, to where shared memory has place for the answers.");
}

inline void bind_json(nb::module_& m) {
  using namespace nb::literals;
  m.def("outline", &outline, "json"_a, nb::sig("def outline(json: Buffer) -> tuple[bytes, list[Range]] | int"),
        "Cut the elements of tensors out of a request: return what is left, and where the pieces lie. Where it is no "
        "JSON, "
        "return the byte at which it makes no sense.");
  m.def("from_json", &from_json, "json"_a, "datatype"_a, "shape"_a,
        nb::sig("def from_json(json: Buffer, datatype: str, shape: collections.abc.Sequence[int]) -> "
                "bytes | tuple[int, int]"),
        "Return the binary layout of a JSON list; or how many elements were right, and at which byte the next one is "
        "not.");
  m.def("to_json", &to_json, "data"_a, "datatype"_a, nb::sig("def to_json(data: Buffer, datatype: str) -> bytes | int"),
        "Return a tensor as a JSON list, or which of its elements is no text in UTF-8.");
}

inline void bind_tensors(nb::module_& m) {
  using namespace nb::literals;
  bind_copies(m);
  bind_json(m);
  m.def(
      "bytes_elements", &count_elements, "data"_a, "most"_a,
      nb::sig("def bytes_elements(data: Buffer, most: int) -> tuple[int, int]"),
      "Count the elements of a BYTES tensor, no further than one more than *most*, and return where the last one ends: "
      "past the data where a length says too much.");
  m.def("unpack_bytes", &unpack_bytes, "data"_a, nb::sig("def unpack_bytes(data: Buffer) -> list[bytes] | None"),
        "Return the elements of a BYTES tensor, or None where their lengths do not add up.");
  m.def("pack_bytes", &pack_bytes, "elements"_a, nb::sig("def pack_bytes(elements: list[typing.Any]) -> bytes | None"),
        "Return the binary layout of a list of bytes, or None where something else is among them.");
  m.def("first_outside", &first_outside_of, "data"_a, "datatype"_a, "low"_a, "high"_a,
        nb::sig("def first_outside(data: Buffer, datatype: str, low: int, high: int) -> int | None"),
        "Return the place of the first element beyond the limits, which are as `native_bounds` makes them, or None.");
  m.def("message_outline", &message_outline, "message"_a, "most"_a,
        nb::sig("def message_outline(message: Buffer, most: int) -> MessageOutline | typing.Literal[False] | None"),
        "Cut the tensors out of a ModelInferRequest. Return False where more than so many bytes would be left, None "
        "where "
        "it is no such message.");
  m.def("from_contents", &from_contents, "contents"_a, "datatype"_a, "elements"_a,
        nb::sig("def from_contents(contents: Buffer, datatype: str, elements: int) -> bytes | int"),
        "Return the binary layout of typed contents of a message, or how many elements were right.");
}

}  // namespace astrarium::protocol
