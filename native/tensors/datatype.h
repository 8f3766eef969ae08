// The protocol's types of elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace astrarium::protocol {

enum class Kind { kBool, kU8, kU16, kU32, kU64, kI8, kI16, kI32, kI64, kF16, kBF16, kF32, kF64, kBytes };

struct Datatype {
  std::string_view name;
  Kind kind;
  std::size_t bytes;  // of an element; 0: it varies
};

inline constexpr Datatype kDatatypes[] = {
    {"BOOL", Kind::kBool, 1},  {"UINT8", Kind::kU8, 1},    {"UINT16", Kind::kU16, 2}, {"UINT32", Kind::kU32, 4},
    {"UINT64", Kind::kU64, 8}, {"INT8", Kind::kI8, 1},     {"INT16", Kind::kI16, 2},  {"INT32", Kind::kI32, 4},
    {"INT64", Kind::kI64, 8},  {"FP16", Kind::kF16, 2},    {"FP32", Kind::kF32, 4},   {"FP64", Kind::kF64, 8},
    {"BF16", Kind::kBF16, 2},  {"BYTES", Kind::kBytes, 0},
};

inline const Datatype* datatype(std::string_view name) {
  for (const Datatype& known : kDatatypes)
    if (known.name == name) return &known;
  return nullptr;
}

// What *visit* makes of a zero of the type that elements of whole numbers have; nothing for any other kind. For whole
// tensors: where JSON is read, element by element, a switch of its own takes half the time.
template <class Visit>
auto visit_whole(Kind kind, Visit visit) -> decltype(visit(std::uint8_t{})) {
  switch (kind) {
    case Kind::kU8: return visit(std::uint8_t{});
    case Kind::kU16: return visit(std::uint16_t{});
    case Kind::kU32: return visit(std::uint32_t{});
    case Kind::kU64: return visit(std::uint64_t{});
    case Kind::kI8: return visit(std::int8_t{});
    case Kind::kI16: return visit(std::int16_t{});
    case Kind::kI32: return visit(std::int32_t{});
    case Kind::kI64: return visit(std::int64_t{});
    default: return decltype(visit(std::uint8_t{}))();
  }
}

}  // namespace astrarium::protocol
