// Reads the body of a request: JSON, with tensors as JSON or as the bytes behind it.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/call.h"
#include "tensors/bytes_layout.h"
#include "tensors/half.h"
#include "tensors/json/bytes_from_json.h"
#include "tensors/json/scan.h"

namespace astrarium::protocol {

// Fills a Call from a body. Every `false` sends the request the long way; `why` says for what reason.
class BodyReader {
 public:
  BodyReader(Call& call, std::string_view json, std::string_view binary, std::size_t limit)
      : call_(call), scan_(json), binary_(binary), limit_(limit), beside_(json.size()) {}

  bool read() {
    call_.inputs.resize(call_.model->inputs.size());
    return scan_.object([this](std::string_view key) { return field(key); }) && scan_.at_end() && complete();
  }

  std::string_view why() const { return why_; }

 private:
  enum Field { kInputs, kOutputs, kId, kParameters, kFields };
  enum Parameter { kTimeout, kPriority, kApplication, kBinary, kParameterCount };
  struct Place {
    std::string_view region;
    std::optional<std::size_t> at, size;

    bool is_given() const { return region.data() != nullptr || at || size; }
    bool is_whole() const { return !region.empty() && size; }
    RegionPlace kept() const { return {std::string(region), at.value_or(0), *size}; }
  };
  struct Announced {
    std::string_view name, type;
    std::int64_t dimensions[kMostDimensions];  // no vector: a request in the steady state takes no memory
    std::size_t axes = 0;
    std::optional<std::size_t> binary;
    Place place;
    std::optional<JsonScan> data;  // where the elements are, if they came before what tells how to read them
    bool has_name = false, has_type = false, has_shape = false, has_data = false, has_parameters = false;
  };

  // Fields and parameters that nobody asked for: they mean nothing, but each may be there only once.
  struct Extras {
    static constexpr std::size_t kMost = 8;  // more go the long way
    std::string_view names[kMost];
    std::size_t count = 0;

    bool add(std::string_view name) {
      if (count == kMost || std::find(names, names + count, name) != names + count) return false;
      names[count++] = name;
      return true;
    }
  };

  bool extra(Extras& extras, std::string_view name) { return extras.add(name) && scan_.scalar(scratch_); }

  // A parameter that would change what a tensor means.
  static bool is_unserved(std::string_view name) {
    return name.substr(0, kRegions.size()) == kRegions || name == "classification";
  }

  // A parameter of a tensor that lies in a region.
  bool place(Place& place, std::string_view name) {
    if (name == "shared_memory_region") return place.region.data() == nullptr && scan_.text(place.region);
    if (name == "shared_memory_byte_size") return !place.size && scan_.whole(place.size.emplace());
    return name == "shared_memory_offset" && !place.at && scan_.whole(place.at.emplace());
  }

  bool once(bool& seen) { return std::exchange(seen, true) == false; }

  bool field(std::string_view key) {
    if (key == "inputs") return once(seen_fields_[kInputs]) && scan_.list([this] { return input(); });
    if (key == "outputs") return once(seen_fields_[kOutputs]) && scan_.list([this] { return output(); });
    if (key == "id") return once(seen_fields_[kId]) && text(call_.id);
    if (key == "parameters")
      return once(seen_fields_[kParameters]) && scan_.object([this](std::string_view name) { return parameter(name); });
    return extra(fields_, key);
  }

  bool text(std::string& kept) {
    kept.clear();
    return scan_.any_text(kept);
  }

  bool parameter(std::string_view name) {
    if (name == "timeout") return once(seen_parameters_[kTimeout]) && bounded(call_.timeout_us, 1, kLongestTimeout);
    if (name == "priority") return once(seen_parameters_[kPriority]) && bounded(call_.priority, 0, kLargestPriority);
    if (name == "application")
      return once(seen_parameters_[kApplication]) && text(call_.application) &&
             characters(call_.application) <= kLongestTag;
    if (name == "binary_data_output") return once(seen_parameters_[kBinary]) && scan_.boolean(all_binary_);
    return name.substr(0, 9) != "sequence_" && extra(parameters_, name);
  }

  bool bounded(std::int64_t& value, std::int64_t low, std::int64_t high) {
    return scan_.whole(value) && value >= low && value <= high;
  }

  // inputs

  bool input() {
    Announced announcement;
    Extras fields, parameters;
    if (!scan_.object([&](std::string_view key) { return input_field(announcement, key, fields, parameters); }))
      return false;
    if (announcement.place.is_given())
      return !announcement.has_data && !announcement.binary && announcement.place.is_whole() &&
             data_in_region(announcement);
    if (announcement.binary) return !announcement.has_data && binary_data(announcement);
    return announcement.data ? late_data(announcement) : announcement.has_data;
  }

  bool binary_data(const Announced& announcement) {
    Input* input = find_input(announcement);
    if (input == nullptr || *announcement.binary > binary_.size() - taken_) return false;
    input->data = binary_.substr(taken_, *announcement.binary);
    taken_ += *announcement.binary;
    if (!is_text()) return *announcement.binary == size_;
    return bytes_elements(input->data, elements_) == std::pair(elements_, input->data.size());
  }

  bool data_in_region(const Announced& announcement) {
    Input* input = find_input(announcement);
    if (input == nullptr) return false;
    if (is_text()) return refused("text");  // somebody has to look at its elements first
    input->place = announcement.place.kept();
    return input->place.size == size_;
  }

  // Elements that came first.
  bool late_data(const Announced& announcement) {
    const JsonScan after = std::exchange(scan_, *announcement.data);
    const bool read = json_data(announcement);
    scan_ = after;
    return read;
  }

  bool input_field(Announced& announcement, std::string_view key, Extras& fields, Extras& parameters) {
    if (key == "name") return once(announcement.has_name) && scan_.text(announcement.name);
    if (key == "datatype") return once(announcement.has_type) && scan_.text(announcement.type);
    if (key == "shape") return once(announcement.has_shape) && scan_.list([&] { return dimension(announcement); });
    if (key == "data") return once(announcement.has_data) && elements(announcement);
    if (key != "parameters") return extra(fields, key);
    return once(announcement.has_parameters) && scan_.object([&](std::string_view name) {
      if (name == "binary_data_size") return !announcement.binary && scan_.whole(announcement.binary.emplace());
      if (name.substr(0, kRegions.size()) == kRegions) return place(announcement.place, name);
      return !is_unserved(name) && extra(parameters, name);
    });
  }

  // Reads elements, or moves behind them where what tells how to read them is still to come.
  bool elements(Announced& announcement) {
    const std::size_t before = scan_.left();
    const bool read =
        is_announced(announcement) ? json_data(announcement) : (announcement.data = scan_, scan_.skip_list());
    beside_ -= before - scan_.left();
    return read;
  }

  static bool is_announced(const Announced& announcement) {
    return announcement.has_name && announcement.has_type && announcement.has_shape;
  }
  bool is_text() const { return spec_->type->kind == Kind::kBytes; }

  bool dimension(Announced& announcement) {
    return announcement.axes < kMostDimensions && scan_.whole(announcement.dimensions[announcement.axes++]);
  }

  // Where an input goes, once all is known of it but its elements; `elements_` is then how many there are, and `size_`
  // the bytes that they take, if those do not vary.
  Input* find_input(const Announced& announcement) {
    if (!is_announced(announcement)) return nullptr;
    const auto at = place_of(call_.model->inputs, announcement.name);
    if (at == call_.inputs.size() || std::exchange(call_.inputs[at].is_there, true)) return nullptr;
    const Spec& spec = call_.model->inputs[at];
    if (spec.type->name != announcement.type) return nullptr;
    Shape& shape = call_.inputs[at].shape;
    shape.assign(announcement.dimensions, announcement.dimensions + announcement.axes);
    const auto elements = spec.elements(shape, limit_);
    if (!elements || shape[0] > call_.model->max_batch) return nullptr;
    if (call_.rows != 0 && shape[0] != call_.rows) return nullptr;
    call_.rows = shape[0];
    spec_ = &spec;
    elements_ = *elements;
    size_ = *elements * spec.type->bytes;
    return &call_.inputs[at];
  }

  bool json_data(const Announced& announcement) {
    Input* input = find_input(announcement);
    if (input == nullptr || !spec_->speaks_json()) return false;
    if (elements_ > scan_.left()) return false;  // a short body must not ask for much memory
    input->own_bytes.resize(size_);
    out_ = input->own_bytes.data();
    out_end_ = out_ + size_;
    texts_ = &input->own_bytes;
    texts_left_ = elements_;
    const bool read = scan_.nested_list() ? nested(input->shape, 0) : scan_.list([this] { return element(); });
    input->data = input->own_bytes;
    return read && (is_text() ? texts_left_ == 0 : out_ == out_end_);
  }

  bool nested(const Shape& shape, std::size_t axis) {
    std::int64_t count = 0;
    const bool last = axis + 1 == shape.size();
    const bool read = scan_.list([&] {
      ++count;
      return last ? element() : nested(shape, axis + 1);
    });
    return read && count == shape[axis];
  }

  bool element() {
    switch (spec_->type->kind) {
      case Kind::kBool: return boolean();
      case Kind::kU8: return whole<std::uint8_t>();
      case Kind::kU16: return whole<std::uint16_t>();
      case Kind::kU32: return whole<std::uint32_t>();
      case Kind::kU64: return whole<std::uint64_t>();
      case Kind::kI8: return whole<std::int8_t>();
      case Kind::kI16: return whole<std::int16_t>();
      case Kind::kI32: return whole<std::int32_t>();
      case Kind::kI64: return whole<std::int64_t>();
      case Kind::kF16: return half();
      case Kind::kF32: return real<float>();
      case Kind::kF64: return real<double>();
      case Kind::kBytes: return texts_left_-- > 0 && append_text(scan_, *texts_);
      default: return false;
    }
  }

  template <class T>
  bool put(T value) {
    if (out_end_ - out_ < static_cast<std::ptrdiff_t>(sizeof value)) return false;
    std::memcpy(out_, &value, sizeof value);
    out_ += sizeof value;
    return true;
  }

  template <class T>
  bool whole() {
    T value{};
    return scan_.whole(value) && put(value);
  }

  template <class T>
  bool real() {
    T value{};
    return scan_.real(value) && put(value);
  }

  bool half() {
    double value = 0;
    std::uint16_t bits = 0;
    return scan_.real(value) && to_half(value, bits) && put(bits);
  }

  bool boolean() {
    bool value = false;
    return scan_.boolean(value) && put(static_cast<std::uint8_t>(value));
  }

  // outputs

  bool output() {
    std::string_view name;
    bool has_name = false, has_parameters = false;
    std::optional<bool> binary;
    Place place;
    Extras fields, parameters;
    const bool read = scan_.object([&](std::string_view key) {
      if (key == "name") return once(has_name) && scan_.text(name);
      if (key != "parameters") return extra(fields, key);
      return once(has_parameters) && scan_.object([&](std::string_view flag) {
        if (flag == "binary_data") return !binary && scan_.boolean(binary.emplace());
        if (flag.substr(0, kRegions.size()) == kRegions) return this->place(place, flag);
        return !is_unserved(flag) && extra(parameters, flag);
      });
    });
    const auto at = place_of(call_.model->outputs, name);
    if (!read || !has_name || at == call_.model->outputs.size()) return false;
    if (place.is_given() && !place.is_whole()) return false;
    for (const Wanted& other : call_.outputs)
      if (other.output == at) return false;
    if (place.is_given()) call_.outputs.push_back({at, true, true, place.kept()});
    else call_.outputs.push_back({at, binary.value_or(false), binary.has_value()});
    return true;
  }

  bool complete() {
    const auto is_there = [](const Input& input) { return input.is_there; };
    if (call_.rows == 0 || taken_ != binary_.size()) return false;
    if (beside_ + call_.inputs.size() * kPieceDigits > kMostBeside) return refused(kTooLarge);
    if (!std::all_of(call_.inputs.begin(), call_.inputs.end(), is_there)) return false;
    if (call_.has_regions() && call_.block_bytes() > limit_) return refused(kTooLarge);
    if (call_.outputs.empty())
      for (std::size_t at = 0; at < call_.model->outputs.size(); ++at) call_.outputs.push_back({at, false, false});
    std::size_t answer = 0;
    for (Wanted& wanted : call_.outputs) {
      const Spec& output = call_.model->outputs[wanted.output];
      const std::size_t size = expected_bytes(output);
      if (!wanted.stated) wanted.binary = all_binary_;
      if (!wanted.binary && !output.speaks_json()) return false;
      if (!wanted.binary && size > kMostJson) return refused(kLargeJson);
      answer += size;
    }
    if (answer > kMostAnswer) return refused(kTooLarge);
    return call_.accepts == Coding::kNone || answer <= kMostJson || refused(kAccepts);  // as slow as JSON is
  }

  bool refused(std::string_view why) {
    why_ = why;
    return false;
  }

  // Of an output; where its size is open, it is expected to follow the inputs.
  std::size_t expected_bytes(const Spec& output) const {
    if (output.type->kind == Kind::kBytes) return call_.block_bytes();
    std::size_t size = output.type->bytes * static_cast<std::size_t>(call_.rows);
    for (const std::int64_t length : output.item) {
      if (length < 0) return call_.block_bytes();
      size *= static_cast<std::size_t>(length);
    }
    return size;
  }

  Call& call_;
  JsonScan scan_;
  std::string_view binary_;
  std::size_t limit_, taken_ = 0, size_ = 0, elements_ = 0, texts_left_ = 0;
  static constexpr std::size_t kPieceDigits = 20;  // at most, in the place of elements in an outline
  std::size_t beside_;                             // bytes of JSON that are no elements
  const Spec* spec_ = nullptr;
  char* out_ = nullptr;
  char* out_end_ = nullptr;
  std::string* texts_ = nullptr;
  std::string scratch_;
  Extras fields_, parameters_;
  bool seen_fields_[kFields] = {}, seen_parameters_[kParameterCount] = {};
  bool all_binary_ = false;
  static constexpr std::string_view kRegions = "shared_memory", kBody = "body", kLargeJson = "large_json",
                                    kAccepts = "accept-encoding", kTooLarge = "too_large";
  std::string_view why_ = kBody;
};

}  // namespace astrarium::protocol
