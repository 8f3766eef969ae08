// Bytes for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

namespace astrarium {

inline nanobind::bytes as_bytes(std::string_view text) { return nanobind::bytes(text.data(), text.size()); }

}  // namespace astrarium
