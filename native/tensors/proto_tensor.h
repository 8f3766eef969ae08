// A ModelInferRequest without the elements of its tensors, and elements in typed contents: protobuf's wire format.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tensors/model.h"

namespace astrarium::protocol {

using Range = std::pair<std::size_t, std::size_t>;  // begin and end

struct Field {
  std::uint32_t number = 0, wire = 0;
  std::uint64_t value = 0;  // of a varint or a fixed number
  std::string_view data;    // of what has a length
  Range place;              // of the whole field
};

enum Wire : std::uint32_t { kVarint = 0, kFixed64 = 1, kSized = 2, kFixed32 = 5 };

// Reads one field after the other; `good` is false where the bytes are none.
class ProtoScan {
 public:
  explicit ProtoScan(std::string_view bytes) : bytes_(bytes) {}

  bool next(Field& field) {
    if (at_ >= bytes_.size() || !good) return false;
    field = Field{};
    const std::size_t begin = at_;
    std::uint64_t tag = 0;
    good = varint(tag) && tag >> 3 != 0 && tag >> 32 == 0;
    field.number = static_cast<std::uint32_t>(tag >> 3);
    field.wire = tag & 7;
    good = good && value(field);
    field.place = {begin, at_};
    return good;
  }

  bool varint(std::uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 70 && at_ < bytes_.size(); shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_[at_++]);
      if (shift < 64) value |= static_cast<std::uint64_t>(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  bool at_end() const { return at_ >= bytes_.size(); }

  bool good = true;

 private:
  bool value(Field& field) {
    if (field.wire == kVarint) return varint(field.value);
    if (field.wire == kFixed32) return fixed(field, 4);
    if (field.wire == kFixed64) return fixed(field, 8);
    std::uint64_t size = 0;
    if (field.wire != kSized || !varint(size) || size > bytes_.size() - at_) return false;
    field.data = bytes_.substr(at_, size);
    at_ += size;
    return true;
  }

  bool fixed(Field& field, std::size_t size) {
    if (bytes_.size() - at_ < size) return false;
    std::memcpy(&field.value, bytes_.data() + at_, size);
    at_ += size;
    return true;
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
};

// Copies a ModelInferRequest but for `inputs[i].contents` and `raw_input_contents`. Stops where more than *most* bytes
// would be left, so that it takes no longer for a larger message.
class ProtoOutline {
 public:
  ProtoOutline(std::string_view message, std::size_t most) : message_(message), most_(most) {}

  bool cut() {
    ProtoScan scan(message_);
    Field field;
    while (text.size() + walked_ <= most_ && scan.next(field)) {
      if (field.number == kRaw && field.wire == kSized) {
        raw.push_back(place(field.data));
        walked_ += 1;
      } else if (field.number == kInputs && field.wire == kSized) scan.good = input(field.data);
      else text += message_.substr(field.place.first, field.place.second - field.place.first);
    }
    return scan.good;
  }

  bool too_large() const { return text.size() + walked_ > most_; }

  std::string text;
  std::vector<Range> raw;
  std::vector<std::vector<Range>> contents;  // by input

 private:
  static constexpr std::uint32_t kInputs = 5, kContents = 5, kRaw = 7;

  Range place(std::string_view data) const {
    const auto begin = static_cast<std::size_t>(data.data() - message_.data());
    return {begin, begin + data.size()};
  }

  bool input(std::string_view data) {
    std::string kept;
    contents.emplace_back();
    ProtoScan scan(data);
    Field field;
    while (text.size() + walked_ + kept.size() <= most_ && scan.next(field)) {
      if (field.number == kContents && field.wire == kSized) {
        contents.back().push_back(place(field.data));
        walked_ += 1;
      } else kept += data.substr(field.place.first, field.place.second - field.place.first);
    }
    text += static_cast<char>(kInputs << 3 | kSized);
    std::size_t size = kept.size();
    for (; size > 127; size >>= 7) text += static_cast<char>(size | 128);
    text += static_cast<char>(size);
    text += kept;
    return scan.good;
  }

  std::string_view message_;
  std::size_t most_, walked_ = 0;
};

// The elements in an InferTensorContents as the binary layout. `read` of them were right where the whole was not.
class ProtoTensor {
 public:
  ProtoTensor(Kind kind, std::size_t elements) : kind_(kind), elements_(elements) {}

  // Numbers go to *out*, which is large enough for all of them; texts to `made`.
  bool parse(std::string_view contents, char* out) {
    out_ = out;
    ProtoScan scan(contents);
    Field field;
    bool right = true;
    while (right && scan.next(field)) right = field.number == number() && member(field);
    return right && scan.good && read == elements_;
  }

  std::size_t read = 0;
  std::string made;

 private:
  std::uint32_t number() const {
    switch (kind_) {
      case Kind::kBool: return 1;
      case Kind::kI8:
      case Kind::kI16:
      case Kind::kI32: return 2;
      case Kind::kI64: return 3;
      case Kind::kU8:
      case Kind::kU16:
      case Kind::kU32: return 4;
      case Kind::kU64: return 5;
      case Kind::kF32: return 6;
      case Kind::kF64: return 7;
      case Kind::kBytes: return 8;
      default: return 0;
    }
  }

  bool member(const Field& field) {
    if (kind_ == Kind::kBytes) return field.wire == kSized && text(field.data);
    const std::uint32_t alone = kind_ == Kind::kF32 ? kFixed32 : kind_ == Kind::kF64 ? kFixed64 : kVarint;
    if (field.wire == alone) return element(field.value);
    return field.wire == kSized &&
           (alone == kVarint ? varints(field.data) : fixed(field.data, alone == kFixed32 ? 4 : 8));
  }

  bool fixed(std::string_view data, std::size_t size) {
    if (data.size() % size != 0 || data.size() / size > elements_ - read) return false;
    std::memcpy(out_, data.data(), data.size());
    out_ += data.size();
    read += data.size() / size;
    return true;
  }

  bool varints(std::string_view data) {
    ProtoScan scan(data);
    std::uint64_t value = 0;
    while (!scan.at_end())
      if (!scan.varint(value) || !element(value)) return false;
    return true;
  }

  bool text(std::string_view data) {
    if (read == elements_) return false;
    const auto length = static_cast<std::uint32_t>(data.size());
    made.append(reinterpret_cast<const char*>(&length), sizeof length).append(data);
    return ++read, true;
  }

  bool element(std::uint64_t value) {
    if (read == elements_) return false;
    switch (kind_) {
      case Kind::kBool: return put(static_cast<std::uint8_t>(value != 0));
      case Kind::kI8: return narrow<std::int8_t>(static_cast<std::int32_t>(value));
      case Kind::kI16: return narrow<std::int16_t>(static_cast<std::int32_t>(value));
      case Kind::kI32: return put(static_cast<std::int32_t>(value));
      case Kind::kU8: return narrow<std::uint8_t>(static_cast<std::uint32_t>(value));
      case Kind::kU16: return narrow<std::uint16_t>(static_cast<std::uint32_t>(value));
      case Kind::kU32: return put(static_cast<std::uint32_t>(value));
      case Kind::kF32: return put(static_cast<std::uint32_t>(value));
      default: return put(value);
    }
  }

  template <class Narrow, class Wide>
  bool narrow(Wide value) {
    return static_cast<Wide>(static_cast<Narrow>(value)) == value && put(static_cast<Narrow>(value));
  }

  template <class T>
  bool put(T value) {
    std::memcpy(out_, &value, sizeof value);
    out_ += sizeof value;
    return ++read, true;
  }

  Kind kind_;
  std::size_t elements_;
  char* out_ = nullptr;
};

}  // namespace astrarium::protocol
