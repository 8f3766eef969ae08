// The tensors of a model as Python tells them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "tensors/model.h"

namespace astrarium::worker {

using SpecRow = std::tuple<std::string, std::string, protocol::Shape>;  // as messages tell them

inline std::vector<protocol::Spec> specs_of(const std::vector<SpecRow>& rows) {
  std::vector<protocol::Spec> specs;
  for (const auto& [name, type, item] : rows) {
    const protocol::Datatype* known = protocol::datatype(type);
    if (known == nullptr || known->bytes == 0)
      throw std::invalid_argument("datatype: expected one of a fixed size, got " + type);
    specs.push_back({name, known, item});
  }
  return specs;
}

}  // namespace astrarium::worker
