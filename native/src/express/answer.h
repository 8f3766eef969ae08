// An answer as it goes over the wire: JSON in one buffer, binary tensors straight from shared memory.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <ctime>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "call.h"
#include "half.h"
#include "model.h"

namespace astrarium::express {

// Where a call's outputs lie: a room for each row, in it the outputs one after the other, each aligned.
struct Rooms {
  const char* first;
  std::size_t bytes;               // of each room
  std::vector<Shape> shapes;       // by output, of one row with its batch of one
  std::vector<std::size_t> sizes;  // by output, of one row
};

// Whether a row's outputs can lie in its room.
inline bool fit(const Model& model, const Rooms& rooms) {
  std::size_t needed = 0;
  for (const std::size_t size : rooms.sizes) {
    if (size > rooms.bytes) return false;  // first: the sum must not overflow
    needed += aligned(size);
  }
  return rooms.sizes.size() == model.outputs.size() && needed <= rooms.bytes;
}

// Rooms of a model whose outputs leave no size open.
inline Rooms fixed_rooms(const Model& model, const char* first, std::size_t bytes) {
  Rooms rooms{first, bytes, {}, {}};
  for (const Spec& spec : model.outputs) {
    Shape shape{1};
    shape.insert(shape.end(), spec.item.begin(), spec.item.end());
    std::size_t size = spec.type->bytes;
    for (const std::int64_t dimension : spec.item) size *= static_cast<std::size_t>(dimension);
    rooms.shapes.push_back(std::move(shape));
    rooms.sizes.push_back(size);
  }
  return rooms;
}

class AnswerWriter {
 public:
  // Builds the answer; `send` or `rest` then read it. Valid until the next one is built.
  void write(const Call& call, const Rooms& rooms) {
    json_.clear(), binary_.clear();
    json_ += R"({"model_name":)", quoted(call.model->name);
    json_ += R"(,"model_version":)", quoted(call.model->version);
    json_ += R"(,"outputs":[)";
    for (const Wanted& wanted : call.outputs) {
      output(call, rooms, wanted);
      json_ += ',';
    }
    json_.back() = ']';
    if (!call.id.empty()) json_ += R"(,"id":)", quoted(call.id);
    json_ += '}';
    head();
  }

  // The refusal of a request that nobody had read in time.
  void refuse_unread(std::string_view model, std::int64_t objective, std::int64_t waited) {
    json_ = R"({"error":"overloaded: model )", escaped(model);
    json_ += ": the request had waited ", milliseconds(waited), json_ += " ms before it was read, and what is left of ";
    milliseconds(objective), json_ += R"( ms is too short"})";
    overloaded();
  }

  // The refusal of a request that has too many others before it.
  void refuse_for_others(std::string_view model, std::int64_t objective, std::int64_t open) {
    json_ = R"({"error":"overloaded: model )", escaped(model);
    json_ += " has ", number(open), json_ += " calls open, more than can be answered in ";
    milliseconds(objective), json_ += R"( ms"})";
    overloaded();
  }

  // Bytes that the socket took at once; what it did not take is for `rest`.
  std::size_t send(int socket) {
    std::vector<iovec> pieces = this->pieces();
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = std::min<std::size_t>(pieces.size(), 1024);
    const ssize_t sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent < 0 ? 0 : static_cast<std::size_t>(sent);
  }

  std::size_t size() const {
    std::size_t size = head_.size() + json_.size();
    for (const auto piece : binary_) size += piece.size();
    return size;
  }

  std::string rest(std::size_t sent) {
    std::string whole;
    for (const iovec& piece : pieces()) whole.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    return whole.substr(sent);
  }

 private:
  void overloaded() {
    binary_.clear();
    head_ = "HTTP/1.1 429 Too Many Requests\r\ndate: ";
    head_ += date();
    head_ += "\r\ncontent-type: application/json\r\nretry-after: 1\r\nx-astrarium-retry-after-ms: 1000\r\ncontent-length: ";
    head_ += std::to_string(json_.size()) + "\r\n\r\n";
  }

  std::vector<iovec> pieces() {
    std::vector<iovec> found{{head_.data(), head_.size()}, {json_.data(), json_.size()}};
    for (const auto piece : binary_) found.push_back({const_cast<char*>(piece.data()), piece.size()});
    return found;
  }

  void head() {
    std::size_t body = json_.size();
    for (const auto piece : binary_) body += piece.size();
    head_ = "HTTP/1.1 200 OK\r\ndate: ";
    head_ += date();
    head_ += binary_.empty() ? "\r\ncontent-type: application/json\r\n"
                             : "\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: " +
                                   std::to_string(json_.size()) + "\r\n";
    head_ += "content-length: " + std::to_string(body) + "\r\n\r\n";
  }

  const std::string& date() {
    const std::time_t now = std::time(nullptr);
    if (now != dated_) {
      std::tm parts{};
      gmtime_r(&now, &parts);
      date_.resize(40);
      date_.resize(std::strftime(date_.data(), date_.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts));
      dated_ = now;
    }
    return date_;
  }

  void output(const Call& call, const Rooms& rooms, const Wanted& wanted) {
    const Spec& spec = call.model->outputs[wanted.output];
    const std::size_t size = rooms.sizes[wanted.output];
    json_ += R"({"name":)", quoted(spec.name);
    json_ += R"(,"datatype":")", json_ += spec.type->name;
    json_ += R"(","shape":[)", number(call.rows);
    const Shape& shape = rooms.shapes[wanted.output];
    for (std::size_t axis = 1; axis < shape.size(); ++axis) json_ += ',', number(shape[axis]);
    json_ += ']';
    std::size_t before = 0;
    for (std::size_t other = 0; other < wanted.output; ++other) before += aligned(rooms.sizes[other]);
    if (wanted.binary) {
      json_ += R"(,"parameters":{"binary_data_size":)", number(call.rows * static_cast<std::int64_t>(size)), json_ += '}';
      for (std::int64_t row = 0; row < call.rows; ++row)
        binary_.emplace_back(rooms.first + row * static_cast<std::int64_t>(rooms.bytes) + before, size);
    } else {
      json_ += R"(,"data":[)";
      for (std::int64_t row = 0; row < call.rows; ++row)
        elements(*spec.type, rooms.first + row * static_cast<std::int64_t>(rooms.bytes) + before, size);
      if (json_.back() == ',') json_.pop_back();
      json_ += ']';
    }
    json_ += '}';
  }

  void elements(const Datatype& type, const char* data, std::size_t size) {
    switch (type.kind) {
      case Kind::kBool: return each<std::uint8_t>(data, size, [this](auto v) { json_ += v ? "true" : "false"; });
      case Kind::kU8: return whole<std::uint8_t>(data, size);
      case Kind::kU16: return whole<std::uint16_t>(data, size);
      case Kind::kU32: return whole<std::uint32_t>(data, size);
      case Kind::kU64: return whole<std::uint64_t>(data, size);
      case Kind::kI8: return whole<std::int8_t>(data, size);
      case Kind::kI16: return whole<std::int16_t>(data, size);
      case Kind::kI32: return whole<std::int32_t>(data, size);
      case Kind::kI64: return whole<std::int64_t>(data, size);
      case Kind::kF16: return each<std::uint16_t>(data, size, [this](auto bits) { json_ += HalfTexts::all()[bits]; });
      case Kind::kF32: return each<float>(data, size, [this](float v) { real(v); });
      case Kind::kF64: return each<double>(data, size, [this](double v) { real(v); });
      default: return;  // a call that wants these in JSON goes the long way
    }
  }

  template <class T, class Write>
  void each(const char* data, std::size_t size, Write write) {
    for (std::size_t at = 0; at + sizeof(T) <= size; at += sizeof(T)) {
      T value;
      std::memcpy(&value, data + at, sizeof value);
      write(value);
      json_ += ',';
    }
  }

  template <class T>
  void whole(const char* data, std::size_t size) {
    each<T>(data, size, [this](T v) { number(v); });
  }

  template <class T>
  void number(T value) {
    char digits[24];
    const auto [end, _] = std::to_chars(digits, digits + sizeof digits, value);
    json_.append(digits, end);
  }

  void milliseconds(std::int64_t nanoseconds) { number((nanoseconds + 500'000) / 1'000'000); }

  void real(double value) {
    char digits[48];
    json_.append(digits, write_real(value, digits, digits + sizeof digits));
  }

  // Names and ids are printable; only quotes and backslashes need care.
  void quoted(std::string_view text) {
    json_ += '"';
    escaped(text);
    json_ += '"';
  }

  void escaped(std::string_view text) {
    for (const char c : text) {
      if (c == '"' || c == '\\') json_ += '\\';
      json_ += c;
    }
  }

  std::string head_, json_, date_;
  std::vector<std::string_view> binary_;
  std::time_t dated_ = -1;
};

}  // namespace astrarium::express
