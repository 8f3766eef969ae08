// A call as a ModelInferRequest, and its answer as a ModelInferResponse: protobuf's wire format.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/answer.h"
#include "protocol/call.h"
#include "tensors/bytes_layout.h"
#include "tensors/proto_tensor.h"

namespace astrarium::protocol {

// Fills a Call from a message. Every `false` sends the call the long way; `why` says for what reason.
class ProtoCallReader {
 public:
  // The name in a message; nothing where there is none.
  static std::string_view model_name(std::string_view message) {
    ProtoScan scan(message);
    Field field;
    std::string_view name;
    while (scan.next(field) && field.number <= kVersion)  // fields come in the order of their numbers
      if (field.number == kName && field.wire == kSized) name = field.data;
    return name;
  }

  // The call is as new, and has its model.
  bool read(Call& call, std::string_view message, std::size_t limit) {
    call_ = &call;
    limit_ = limit;
    why_ = kBody;
    inputs_.clear();
    raw_.clear();
    call.inputs.resize(call.model->inputs.size());
    ProtoScan scan(message);
    Field field;
    while (scan.next(field))
      if (!take_field(field)) return false;
    return scan.good && place_inputs() && complete();
  }

  std::string_view why() const { return why_; }

 private:
  enum Number : std::uint32_t {
    kName = 1,
    kVersion = 2,
    kId = 3,
    kParameters = 4,
    kInputs = 5,
    kOutputs = 6,
    kRaw = 7
  };
  struct InputMessage {
    std::size_t at;  // among the model's inputs
    std::size_t elements;
    std::string_view contents;
    bool has_contents;
    bool is_in_region;
  };

  bool take_field(const Field& field) {
    if (field.wire != kSized) return false;
    switch (field.number) {
      case kName: return field.data == call_->model->name;
      case kVersion: return field.data.empty() || field.data == call_->model->version || refused("version");
      case kId: return plain(field.data) && (call_->id = field.data, true);
      case kParameters: return parameter(field.data);
      case kInputs: return inputs_.size() < call_->inputs.size() && input(field.data);
      case kOutputs: return output(field.data);
      case kRaw: return raw_.size() < call_->inputs.size() && (raw_.push_back(field.data), true);
      default: return false;
    }
  }

  // Any other text has to be looked at by somebody who knows UTF-8.
  static bool plain(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 128; });
  }
  static bool begins(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

  static bool entry(std::string_view data, std::string_view& name, Field& value) {
    ProtoScan scan(data);
    Field field;
    bool named = false, valued = false;
    while (scan.next(field)) {
      if (field.wire != kSized) return false;
      if (field.number == 1 && !std::exchange(named, true)) name = field.data;
      else if (field.number != 2 || std::exchange(valued, true) || !choice(field.data, value)) return false;
    }
    return scan.good && plain(name);
  }

  // The one field of an InferParameter; none where it wraps nothing.
  static bool choice(std::string_view data, Field& value) {
    constexpr std::uint32_t kWires[] = {0, kVarint, kVarint, kSized, kFixed64, kVarint};
    ProtoScan scan(data);
    Field field;
    while (scan.next(field)) {
      if (value.number || field.number >= std::size(kWires) || field.wire != kWires[field.number]) return false;
      value = field;
    }
    return scan.good && plain(value.data);
  }

  bool parameter(std::string_view data) {
    constexpr std::uint32_t kText = 3;
    std::string_view name;
    Field value;
    if (!entry(data, name, value) || begins(name, "sequence_")) return false;
    if (name == "timeout") return bounded(value, call_->timeout_us, 1, kLongestTimeout);
    if (name == "priority") return bounded(value, call_->priority, 0, kLargestPriority);
    if (name != "application") return true;
    if (value.number != kText || value.data.size() > kLongestTag) return false;
    call_->application = value.data;
    return true;
  }

  // Once, and a whole number, signed or not.
  static bool bounded(const Field& value, std::int64_t& result, std::int64_t low, std::int64_t high) {
    constexpr std::uint32_t kSigned = 2, kUnsigned = 5;
    if (result || (value.number != kSigned && value.number != kUnsigned)) return false;
    if (value.value > static_cast<std::uint64_t>(high)) return false;  // a negative one is large
    result = static_cast<std::int64_t>(value.value);
    return result >= low;
  }

  // Whether a tensor's parameter changes nothing, or says in which region it lies.
  bool tensor_parameter(std::string_view data) {
    std::string_view name;
    Field value;
    if (!entry(data, name, value) || name == "classification") return false;
    return !begins(name, "shared_memory") || place_parameter(name, value);
  }

  bool place_parameter(std::string_view name, const Field& value) {
    constexpr std::uint32_t kSigned = 2, kText = 3, kUnsigned = 5;
    if (name == "shared_memory_region") {
      place_.region = value.data;
      return value.number == kText;
    }
    const bool is_whole = value.number == kSigned || value.number == kUnsigned;
    if (name == "shared_memory_offset") {
      place_.at = value.value;
      return is_whole;
    }
    if (name != "shared_memory_byte_size") return false;
    place_.size = value.value;
    return is_whole;
  }
  // None at all, or a whole one.
  bool has_good_place() const { return place_.is_given() ? place_.size > 0 : place_.at == 0 && place_.size == 0; }

  bool input(std::string_view data) {
    ProtoScan scan(data);
    Field field;
    std::string_view name, type;
    InputMessage message{};
    shape_.clear();
    place_.clear();
    while (scan.next(field))
      if (!input_field(field, name, type, message)) return false;
    return scan.good && check_input(name, type, message);
  }

  bool input_field(const Field& field, std::string_view& name, std::string_view& type, InputMessage& message) {
    constexpr std::uint32_t kName = 1, kType = 2, kShape = 3, kOneParameter = 4, kContents = 5;
    if (field.number == kShape) return dimensions(field);
    if (field.wire != kSized) return false;
    if (field.number == kOneParameter) return tensor_parameter(field.data);
    if (field.number == kContents) {
      message.contents = field.data;
      return !std::exchange(message.has_contents, true);
    }
    if (field.number != kName && field.number != kType) return false;
    (field.number == kName ? name : type) = field.data;
    return true;
  }

  bool dimensions(const Field& field) {
    if (field.wire == kVarint) return dimension(field.value);
    if (field.wire != kSized) return false;
    ProtoScan scan(field.data);
    std::uint64_t value = 0;
    while (!scan.at_end())
      if (!scan.varint(value) || !dimension(value)) return false;
    return true;
  }
  bool dimension(std::uint64_t value) {
    if (shape_.size() == kMostDimensions) return false;
    shape_.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool check_input(std::string_view name, std::string_view type, InputMessage& message) {
    const auto at = place_of(call_->model->inputs, name);
    if (at == call_->inputs.size() || std::exchange(call_->inputs[at].is_there, true)) return false;
    const Spec& spec = call_->model->inputs[at];
    if (spec.type->name != type) return false;
    const auto elements = spec.elements(shape_, limit_);
    if (!elements || shape_[0] > call_->model->max_batch || (call_->rows != 0 && shape_[0] != call_->rows))
      return false;
    call_->rows = shape_[0];
    call_->inputs[at].shape = shape_;
    message.at = at;
    message.elements = *elements;
    message.is_in_region = place_.is_given();
    if (place_.is_given() && is_text(message)) return refused("text");  // somebody has to look at its elements first
    if (!has_good_place() || (place_.is_given() && (place_.size != size(message) || message.has_contents)))
      return false;
    call_->inputs[at].place = place_;
    inputs_.push_back(message);
    return true;
  }

  const Datatype& type_of(const InputMessage& message) const { return *call_->model->inputs[message.at].type; }
  bool is_text(const InputMessage& message) const { return type_of(message).kind == Kind::kBytes; }
  std::size_t size(const InputMessage& message) const { return message.elements * type_of(message).bytes; }

  bool place_inputs() {
    if (inputs_.size() != call_->inputs.size()) return false;
    std::size_t next = 0;
    for (const InputMessage& message : inputs_) {
      if (message.is_in_region) continue;
      if (!raw_.empty() && next == raw_.size()) return false;
      if (!(raw_.empty() ? typed(message) : binary(message, raw_[next++]))) return false;
    }
    return next == raw_.size();
  }

  bool binary(const InputMessage& message, std::string_view data) {
    if (message.has_contents) return false;
    call_->inputs[message.at].data = data;
    if (!is_text(message)) return data.size() == size(message);
    return bytes_elements(data, message.elements) == std::pair(message.elements, data.size());
  }

  bool typed(const InputMessage& message) {
    if (message.contents.size() > kMostJson) return refused("large_contents");
    if (message.elements > message.contents.size()) return false;  // a short message must not ask for much memory
    Input& input = call_->inputs[message.at];
    input.own_bytes.resize(size(message));
    ProtoTensor tensor(type_of(message).kind, message.elements);
    if (!tensor.parse(message.contents, input.own_bytes.data())) return false;
    if (is_text(message)) input.own_bytes = std::move(tensor.made);
    input.data = input.own_bytes;
    return true;
  }

  bool output(std::string_view data) {
    ProtoScan scan(data);
    Field field;
    std::string_view name;
    place_.clear();
    while (scan.next(field)) {
      if (field.wire != kSized) return false;
      if (field.number == 1) name = field.data;
      else if (field.number != 2 || !tensor_parameter(field.data)) return false;
    }
    if (!has_good_place()) return false;
    const auto at = place_of(call_->model->outputs, name);
    const auto same = [at](const Wanted& other) { return other.output == at; };
    if (!scan.good || at == call_->model->outputs.size() ||
        std::any_of(call_->outputs.begin(), call_->outputs.end(), same))
      return false;
    call_->outputs.push_back({at, true, true, place_});
    return true;
  }

  bool complete() {
    if (call_->rows == 0) return false;
    if (call_->has_regions() && call_->block_bytes() > limit_) return refused("too_large");
    if (call_->outputs.empty())
      for (std::size_t at = 0; at < call_->model->outputs.size(); ++at) call_->outputs.push_back({at, true});
    return true;
  }

  bool refused(std::string_view why) { return why_ = why, false; }

  static constexpr std::string_view kBody = "body";
  Call* call_ = nullptr;
  std::size_t limit_ = 0;
  std::string_view why_;
  Shape shape_;
  RegionPlace place_;                 // of the tensor that is being read
  std::vector<InputMessage> inputs_;  // in the message's order
  std::vector<std::string_view> raw_;
};

// The answer in pieces, of which the outputs lie in shared memory. Valid until the next one is written.
class ProtoAnswerWriter {
 public:
  static constexpr std::size_t kPrefix = 5;  // bytes before a message of gRPC: whether it is compressed, and its length

  const std::vector<std::string_view>& write(const Call& call, const ReplyLayout& layout) {
    text_.assign(kPrefix, '\0');
    string(kName, call.model->name);
    string(kVersion, call.model->version);
    if (!call.id.empty()) string(kId, call.id);
    for (const Wanted& wanted : call.outputs) describe(call, layout, wanted);
    cuts_.clear();
    for (const Wanted& wanted : call.outputs) {
      tag(kRaw, wanted.place.is_given() ? 0 : layout.size_of_all(call.rows, wanted.output));
      cuts_.push_back(text_.size());
    }
    gather(call, layout);
    return pieces_;
  }
  std::size_t size() const { return size_; }  // with the prefix

 private:
  enum Number : unsigned { kName = 1, kVersion = 2, kId = 3, kOutputs = 5, kRaw = 6, kShape = 3 };

  void tag(unsigned number, std::size_t size) { text_ += static_cast<char>(number << 3 | kSized), varint(text_, size); }
  void string(unsigned number, std::string_view text) { tag(number, text.size()), text_ += text; }

  static void varint(std::string& out, std::uint64_t value) {
    for (; value > 127; value >>= 7) out += static_cast<char>(value | 128);
    out += static_cast<char>(value);
  }

  void describe(const Call& call, const ReplyLayout& layout, const Wanted& wanted) {
    const std::size_t output = wanted.output;
    const Spec& spec = call.model->outputs[output];
    shape_.clear();
    varint(shape_, static_cast<std::uint64_t>(call.rows));
    const Shape& shape = layout.shapes[output];
    for (std::size_t axis = 1; axis < shape.size(); ++axis) varint(shape_, static_cast<std::uint64_t>(shape[axis]));
    std::string whole = std::exchange(text_, std::move(inner_));
    text_.clear();
    string(kName, spec.name);
    string(kVersion, spec.type->name);
    string(kShape, shape_);
    inner_ = std::exchange(text_, std::move(whole));
    string(kOutputs, inner_);
  }

  // The text is whole now, and stays where it is.
  void gather(const Call& call, const ReplyLayout& layout) {
    pieces_.clear();
    std::size_t from = 0;
    size_ = text_.size();
    for (std::size_t i = 0; i < cuts_.size(); ++i) {
      const std::size_t output = call.outputs[i].output;
      pieces_.push_back(std::string_view(text_).substr(from, cuts_[i] - from));
      from = cuts_[i];
      if (call.outputs[i].place.is_given()) continue;
      for (std::int64_t row = 0; row < call.rows; ++row) size_ += pieces_.emplace_back(layout.data(row, output)).size();
    }
    const std::size_t length = size_ - kPrefix;
    for (std::size_t i = 0; i < 4; ++i) text_[1 + i] = static_cast<char>(length >> (24 - 8 * i));
  }

  std::string text_, inner_, shape_;
  std::vector<std::size_t> cuts_;  // of the text: after each comes an output
  std::vector<std::string_view> pieces_;
  std::size_t size_ = 0;
};

}  // namespace astrarium::protocol
