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

  // A refusal; *status* is its number and phrase.
  void refuse(std::string_view status, std::string_view reason, bool retry) {
    json_ = R"({"error":")", told(reason), json_ += R"("})";
    refusal(status, retry);
  }

  // Bytes that the socket took at once; what it did not take is for `rest`.
  std::size_t send(int socket) {
    const ssize_t sent = size() <= kSmall ? send_joined(socket) : send_pieces(socket);
    return sent < 0 ? 0 : static_cast<std::size_t>(sent);
  }

  std::size_t size() const {
    std::size_t size = head_.size() + json_.size();
    for (const auto piece : binary_) size += piece.size();
    return size;
  }

  std::string rest(std::size_t sent) {
    std::string whole;
    gather();
    for (const iovec& piece : pieces_) whole.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
    return whole.substr(sent);
  }

 private:
  static constexpr std::size_t kSmall = 4096;  // bytes: to copy fewer costs less than to tell the system of the pieces

  ssize_t send_joined(int socket) {
    char all[kSmall];
    char* at = all;
    const auto add = [&at](std::string_view piece) { at = std::copy(piece.begin(), piece.end(), at); };
    add(head_), add(json_);
    for (const auto piece : binary_) add(piece);
    return ::send(socket, all, static_cast<std::size_t>(at - all), MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  ssize_t send_pieces(int socket) {
    gather();
    msghdr message{};
    message.msg_iov = pieces_.data();
    message.msg_iovlen = std::min<std::size_t>(pieces_.size(), 1024);
    return ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  void refusal(std::string_view status, bool retry) {
    binary_.clear();
    head_ = "HTTP/1.1 ", head_ += status;
    head_ += "\r\ndate: ", head_ += date(), head_ += "\r\ncontent-type: application/json\r\n";
    if (retry) head_ += "retry-after: 1\r\nx-astrarium-retry-after-ms: 1000\r\n";
    head_ += "content-length: ", append(head_, json_.size()), head_ += "\r\n\r\n";
  }

  void gather() {
    pieces_.clear();
    pieces_.push_back({head_.data(), head_.size()});
    pieces_.push_back({json_.data(), json_.size()});
    for (const auto piece : binary_) pieces_.push_back({const_cast<char*>(piece.data()), piece.size()});
  }

  void head() {
    std::size_t body = json_.size();
    for (const auto piece : binary_) body += piece.size();
    head_ = "HTTP/1.1 200 OK\r\ndate: ", head_ += date();
    if (binary_.empty()) {
      head_ += "\r\ncontent-type: application/json\r\n";
    } else {
      head_ += "\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: ";
      append(head_, json_.size()), head_ += "\r\n";
    }
    head_ += "content-length: ", append(head_, body), head_ += "\r\n\r\n";
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
  static void append(std::string& text, T value) {
    char digits[24];
    const auto [end, _] = std::to_chars(digits, digits + sizeof digits, value);
    text.append(digits, end);
  }

  template <class T>
  void number(T value) {
    append(json_, value);
  }

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

  // Any text in UTF-8, as msgspec writes it.
  void told(std::string_view text) {
    constexpr char kHex[] = "0123456789abcdef";
    for (const char c : text) {
      const auto code = static_cast<unsigned char>(c);
      if (c == '"' || c == '\\') json_ += '\\', json_ += c;
      else if (code >= ' ') json_ += c;
      else if (const char* named = std::strchr(kNamed, c); c != '\0' && named != nullptr) json_ += '\\', json_ += kLetters[named - kNamed];
      else json_ += "\\u00", json_ += kHex[code >> 4], json_ += kHex[code & 15];
    }
  }
  static constexpr char kNamed[] = "\b\t\n\f\r", kLetters[] = "btnfr";

  std::string head_, json_, date_;
  std::vector<std::string_view> binary_;
  std::vector<iovec> pieces_;
  std::time_t dated_ = -1;
};

}  // namespace astrarium::express
