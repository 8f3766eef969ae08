// What the short way knows of a model: the tensors that it takes and gives.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensors/datatype.h"
#include "tensors/value_limits.h"

namespace astrarium::protocol {

inline constexpr std::size_t kAlignment = 64;  // of every tensor in a block of shared memory

inline constexpr std::size_t aligned(std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

inline constexpr std::size_t kMostTexts = 1'000'000;  // elements of BYTES, as in server/protocol/checking.py

using Shape = std::vector<std::int64_t>;

struct Spec {
  std::string name;
  const Datatype* type;
  Shape item;                                   // of one item, without the batch; -1 is any size
  std::optional<Limits> limits = std::nullopt;  // of an input
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges =
      {};  // of each dimension of `item`; none: any size fits -1

  bool operator==(const Spec&) const = default;

  // How long each row of a tensor of this shape (batch first) is: the product of its open dimensions, 0 without any.
  std::int64_t length(const Shape& shape) const {
    std::int64_t product = 0;
    for (std::size_t axis = 0; axis < item.size() && axis + 1 < shape.size(); ++axis)
      if (item[axis] < 0) product = std::max<std::int64_t>(1, product) * shape[axis + 1];
    return product;
  }

  // The protocol has no BF16 in JSON.
  bool speaks_json() const { return type->kind != Kind::kBF16; }

  // The bytes of a tensor of this shape (batch first), or nothing where it does not fit or exceeds *limit*.
  std::optional<std::size_t> bytes(const Shape& shape, std::size_t limit) const {
    const auto count = elements(shape, limit);
    return count ? std::optional(*count * type->bytes) : std::nullopt;
  }

  // Its elements, each of a length of its own or not, or nothing where they cannot be within *limit* bytes.
  std::optional<std::size_t> elements(const Shape& shape, std::size_t limit) const {
    if (shape.size() != item.size() + 1 || shape[0] < 1) return std::nullopt;
    std::size_t elements = 1;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (!fits(axis, shape[axis]) || shape[axis] < 1) return std::nullopt;  // empty tensors go the long way
      if (static_cast<std::size_t>(shape[axis]) > limit / elements) return std::nullopt;
      elements *= static_cast<std::size_t>(shape[axis]);
    }
    const bool is_text = type->kind == Kind::kBytes;
    if (is_text && elements > kMostTexts) return std::nullopt;
    return elements <= limit / (is_text ? sizeof(std::uint32_t) : type->bytes) ? std::optional(elements) : std::nullopt;
  }

 private:
  // Whether a dimension of a tensor may have this size; the first one is the batch.
  bool fits(std::size_t axis, std::int64_t size) const {
    if (axis == 0 || item[axis - 1] == size) return true;
    if (item[axis - 1] != -1) return false;
    return ranges.empty() || (ranges[axis - 1].first <= size && size <= ranges[axis - 1].second);
  }
};

struct Model {
  int index;
  std::string name, version;
  std::vector<Spec> inputs, outputs;
  std::int64_t max_batch;
  std::int64_t objective = 0;                       // nanoseconds; 0: nobody is refused here for being late
  std::map<std::int64_t, std::int64_t> priorities;  // their objectives
};

inline std::size_t place_of(const std::vector<Spec>& specs, std::string_view name) {
  std::size_t at = 0;
  while (at < specs.size() && specs[at].name != name) ++at;
  return at;
}

}  // namespace astrarium::protocol
