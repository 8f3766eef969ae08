// The elements of one tensor between JSON and the binary layout, both ways, for tensors so large that they are
// read and written without Python's lock.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>

#include "tensors/json/bytes_from_json.h"
#include "tensors/json/scan.h"
#include "tensors/json/text.h"
#include "tensors/model.h"

namespace astrarium::protocol {

// Reads a JSON list, flat or nested as the shape says. `read` elements were right where the whole was not.
class JsonTensor {
 public:
  JsonTensor(std::string_view json, Kind kind, const Shape& shape)
      : json_(json), scan_(json), kind_(kind), shape_(shape) {
    elements_ = 1;
    for (const std::int64_t size : shape) elements_ *= static_cast<std::size_t>(size);
  }

  // Numbers go to *out*, which is large enough for all of them; texts to `made`.
  bool parse(char* out) {
    out_ = out;
    const bool nested = shape_.size() > 1 && scan_.nested_list();
    const bool whole = nested ? level(0) : scan_.list([this] { return counted(); });
    return whole && scan_.at_end() && read == elements_;
  }

  std::size_t stopped() const { return json_.size() - scan_.left(); }

  std::size_t read = 0;
  std::string made;

 private:
  bool level(std::size_t axis) {
    std::int64_t count = 0;
    const bool last = axis + 1 == shape_.size();
    return scan_.list([&] { return ++count <= shape_[axis] && (last ? counted() : level(axis + 1)); }) &&
           count == shape_[axis];
  }

  bool counted() {
    if (read == elements_ || !element()) return false;
    ++read;
    return true;
  }

  bool element() {
    switch (kind_) {
      case Kind::kBool: return boolean();
      case Kind::kU8: return whole<std::uint8_t>();
      case Kind::kU16: return whole<std::uint16_t>();
      case Kind::kU32: return whole<std::uint32_t>();
      case Kind::kU64: return whole<std::uint64_t>();
      case Kind::kI8: return whole<std::int8_t>();
      case Kind::kI16: return whole<std::int16_t>();
      case Kind::kI32: return whole<std::int32_t>();
      case Kind::kI64: return whole<std::int64_t>();
      case Kind::kF32: return real<float>();
      case Kind::kF64: return real<double>();
      case Kind::kBytes: return text();
      default: return false;
    }
  }

  template <class T>
  bool put(T value) {
    std::memcpy(out_, &value, sizeof value);
    out_ += sizeof value;
    return true;
  }

  bool boolean() {
    bool value = false;
    return scan_.boolean(value) && put(static_cast<std::uint8_t>(value));
  }

  template <class T>
  bool whole() {
    T value{};
    return scan_.whole(value) && put(value);
  }

  template <class T>
  bool real() {
    T value{};
    const JsonScan before = scan_;
    return (scan_.real(value) || (scan_ = before, tiny(value))) && put(value);
  }

  // A number that is closer to 0 than any other double, which `from_chars` refuses.
  template <class T>
  bool tiny(T& value) {
    constexpr std::size_t kLongest = 1000;  // characters of a number
    scan_.peek();
    const std::string_view rest = json_.substr(stopped());
    const std::size_t size = std::min(rest.find_first_of(",] \n\r\t"), rest.size());
    if (size == 0 || size > kLongest || rest.find_first_not_of("+-.0123456789eE") < size) return false;
    const std::string number(rest.substr(0, size));
    const std::size_t first = number[0] == '-';
    if (number[first] < '0' || number[first] > '9' ||
        (number[first] == '0' && number[first + 1] >= '0' && number[first + 1] <= '9'))
      return false;
    char* end = nullptr;
    const double parsed = std::strtod(number.c_str(), &end);
    if (*end != '\0' || std::fabs(parsed) > std::numeric_limits<double>::min()) return false;
    value = static_cast<T>(parsed);
    scan_ = JsonScan(rest.substr(size));
    return true;
  }

  bool text() { return append_text(scan_, made); }

  std::string_view json_;
  JsonScan scan_;
  Kind kind_;
  const Shape& shape_;
  std::size_t elements_ = 0;
  char* out_ = nullptr;
};

// Writes a flat JSON list, every number as `AnswerWriter` writes it.
class JsonTensorWriter {
 public:
  explicit JsonTensorWriter(std::string_view data) : data_(data) {}

  // False where a text is no UTF-8; `written` elements were.
  bool write(Kind kind) {
    json += '[';
    const bool right = kind == Kind::kBytes ? texts() : numbers(kind);
    if (json.back() == ',') json.pop_back();
    json += ']';
    return right;
  }

  std::size_t written = 0;
  std::string json;

 private:
  bool numbers(Kind kind) {
    switch (kind) {
      case Kind::kBool: return for_each<std::uint8_t>([this](auto value) { json += value ? "true" : "false"; });
      case Kind::kF32: return for_each<float>([this](float value) { real(value); });
      case Kind::kF64: return for_each<double>([this](double value) { real(value); });
      default: return visit_whole(kind, [this](auto zero) { return whole<decltype(zero)>(); });
    }
  }

  template <class T, class Write>
  bool for_each(Write write) {
    for (std::size_t at = 0; at + sizeof(T) <= data_.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, data_.data() + at, sizeof value);
      write(value);
      json += ',';
    }
    return true;
  }

  template <class T>
  bool whole() {
    return for_each<T>([this](T value) {
      char digits[24];
      json.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
    });
  }

  void real(double value) {
    if (!std::isfinite(value)) {
      json += "null";
      return;
    }
    char digits[40];
    const double size = std::fabs(value);
    const bool fixed = value == 0 || (size >= 1e-5 && size < 1e16);
    const auto form = fixed ? std::chars_format::fixed : std::chars_format::scientific;
    char* end = std::to_chars(digits, digits + sizeof digits, value, form).ptr;
    json.append(digits, end);
    if (fixed && std::string_view(digits, end).find('.') == std::string_view::npos) json += ".0";
  }

  bool texts() {
    for (std::size_t at = 0; at + 4 <= data_.size(); ++written) {
      std::uint32_t length;
      std::memcpy(&length, data_.data() + at, sizeof length);
      const std::string_view text = data_.substr(at + 4, length);
      if (text.size() < length || !is_utf8(text)) return false;
      append_quoted(json, text);
      json += ',';
      at += 4 + length;
    }
    return true;
  }

  std::string_view data_;
};

}  // namespace astrarium::protocol
