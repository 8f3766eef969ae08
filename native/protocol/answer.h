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
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/call.h"
#include "protocol/compression.h"
#include "tensors/half.h"
#include "tensors/json/text.h"
#include "tensors/model.h"

namespace astrarium::protocol {

// Where a call's outputs lie: a block for each row, in it the outputs one after the other, each aligned. The blocks lie
// one after the other too, unless `blocks` says where.
struct ReplyLayout {
  const char* first;
  std::size_t bytes;               // of each block
  std::vector<Shape> shapes;       // by output, of one row with its batch of one
  std::vector<std::size_t> sizes;  // by output, of one row; of each row in turn where they may differ
  std::vector<const char*> blocks = {};

  std::size_t size(std::int64_t row, std::size_t output) const {
    return sizes[sizes.size() == shapes.size() ? output : static_cast<std::size_t>(row) * shapes.size() + output];
  }

  std::size_t size_of_all(std::int64_t rows, std::size_t output) const {
    std::size_t sum = 0;
    for (std::int64_t row = 0; row < rows; ++row) sum += size(row, output);
    return sum;
  }

  const char* block(std::int64_t row) const {
    const auto at = static_cast<std::size_t>(row);
    return blocks.empty() ? first + at * bytes : blocks[at];
  }

  // What a row has of an output.
  std::string_view data(std::int64_t row, std::size_t output) const {
    std::size_t before = 0;
    for (std::size_t other = 0; other < output; ++other) before += aligned(size(row, other));
    return {block(row) + before, size(row, output)};
  }
};

// Whether the outputs of each of so many rows can lie in its block.
inline bool fit(const Model& model, const ReplyLayout& layout, std::int64_t rows) {
  if (layout.shapes.size() != model.outputs.size()) return false;
  if (layout.sizes.size() != layout.shapes.size() &&
      layout.sizes.size() != layout.shapes.size() * static_cast<std::size_t>(rows))
    return false;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::size_t needed = 0;
    for (std::size_t output = 0; output < layout.shapes.size(); ++output) {
      if (layout.size(row, output) > layout.bytes) return false;  // first: the sum must not overflow
      needed += aligned(layout.size(row, output));
    }
    if (needed > layout.bytes) return false;
  }
  return true;
}

// An element of BYTES that cannot be written in JSON.
struct NoText {
  std::string_view output, element;
  std::size_t number = 0;
  bool is_broken = false;  // it is no element at all
};

// ReplyLayout of a model whose outputs leave no size open.
inline ReplyLayout fixed_layout(const Model& model, const char* first, std::size_t bytes) {
  ReplyLayout layout{first, bytes, {}, {}};
  for (const Spec& spec : model.outputs) {
    Shape shape{1};
    shape.insert(shape.end(), spec.item.begin(), spec.item.end());
    std::size_t size = spec.type->bytes;
    for (const std::int64_t dimension : spec.item) size *= static_cast<std::size_t>(dimension);
    layout.shapes.push_back(std::move(shape));
    layout.sizes.push_back(size);
  }
  return layout;
}

class AnswerWriter {
 public:
  // What is written next answers this call.
  void about(const Call& call) { closes_ = call.closes; }

  // Builds the answer, with *headers* in its head; `send` or `rest` then read it. Valid until the next one is built.
  // False where an element is no text.
  bool write(const Call& call, const ReplyLayout& layout, std::string_view headers = {}) {
    json_.clear();
    binary_.clear();
    json_ += R"({"model_name":)";
    quoted(call.model->name);
    json_ += R"(,"model_version":)";
    quoted(call.model->version);
    json_ += R"(,"outputs":[)";
    for (const Wanted& wanted : call.outputs) {
      if (!output(call, layout, wanted)) return false;
      json_ += ',';
    }
    json_.back() = ']';
    if (!call.id.empty()) {
      json_ += R"(,"id":)";
      quoted(call.id);
    }
    json_ += '}';
    head(call.accepts, headers);
    return true;
  }
  const NoText& no_text() const { return no_text_; }

  // A refusal; *status* is its number and phrase.
  void refuse(std::string_view status, std::string_view reason, bool retry) {
    json_ = R"({"error":)";
    quoted(reason);
    json_ += '}';
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

  // Appends what is left after the first *sent* bytes.
  template <class Bytes>
  void rest(std::size_t sent, Bytes& out) {
    out.reserve(size() - sent);
    gather();
    for (const iovec& piece : pieces_) {
      const std::size_t skipped = std::min(sent, piece.iov_len);
      out.append({static_cast<const char*>(piece.iov_base) + skipped, piece.iov_len - skipped});
      sent -= skipped;
    }
  }

 private:
  static constexpr std::size_t kSmall = 4096;  // bytes: to copy fewer costs less than to tell the system of the pieces

  ssize_t send_joined(int socket) {
    char joined[kSmall];
    char* at = joined;
    const auto add = [&at](std::string_view piece) { at = std::copy(piece.begin(), piece.end(), at); };
    add(head_);
    add(json_);
    for (const auto piece : binary_) add(piece);
    return ::send(socket, joined, static_cast<std::size_t>(at - joined), MSG_DONTWAIT | MSG_NOSIGNAL);
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
    head_ = "HTTP/1.1 ";
    head_ += status;
    head_ += "\r\ndate: ";
    head_ += date();
    head_ += "\r\ncontent-type: application/json\r\n";
    if (retry) head_ += "retry-after: 1\r\nx-astrarium-retry-after-ms: 1000\r\n";
    end_head(json_.size());
  }

  void end_head(std::size_t body) {
    head_ += "content-length: ";
    append(head_, body);
    head_ += closes_ ? "\r\nconnection: close\r\n\r\n" : "\r\n\r\n";
  }

  void gather() {
    pieces_.clear();
    pieces_.push_back({head_.data(), head_.size()});
    pieces_.push_back({json_.data(), json_.size()});
    for (const auto piece : binary_) pieces_.push_back({const_cast<char*>(piece.data()), piece.size()});
  }

  void head(Coding coding, std::string_view headers) {
    head_ = "HTTP/1.1 200 OK\r\ndate: ";
    head_ += date();
    if (binary_.empty()) {
      head_ += "\r\ncontent-type: application/json\r\n";
    } else {
      head_ += "\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: ";
      append(head_, json_.size());
      head_ += "\r\n";
    }
    head_ += headers;
    std::size_t body = json_.size();
    for (const auto piece : binary_) body += piece.size();
    if (coding != Coding::kNone && pack(coding, body)) {
      head_ += "content-encoding: ";
      head_ += kCodings[static_cast<std::size_t>(coding)];
      head_ += "\r\n";
      body = json_.size();
    }
    end_head(body);
  }

  // The whole body compressed, in the place of the JSON.
  bool pack(Coding coding, std::size_t body) {
    auto& deflater = deflaters_[coding == Coding::kGzip];
    if (deflater == nullptr) deflater = std::make_unique<Deflater>(coding);
    if (!deflater->begin(body, packed_)) return false;
    deflater->add(json_);
    for (const auto piece : binary_) deflater->add(piece);
    deflater->end(packed_);
    json_.swap(packed_);
    binary_.clear();
    return true;
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

  bool output(const Call& call, const ReplyLayout& layout, const Wanted& wanted) {
    const Spec& spec = call.model->outputs[wanted.output];
    json_ += R"({"name":)";
    quoted(spec.name);
    json_ += R"(,"datatype":")";
    json_ += spec.type->name;
    json_ += R"(","shape":[)";
    number(call.rows);
    const Shape& shape = layout.shapes[wanted.output];
    for (std::size_t axis = 1; axis < shape.size(); ++axis) {
      json_ += ',';
      number(shape[axis]);
    }
    json_ += ']';
    const bool is_whole = wanted.place.is_given() || data_of_output(call, layout, wanted);
    json_ += '}';
    return is_whole;
  }

  bool data_of_output(const Call& call, const ReplyLayout& layout, const Wanted& wanted) {
    if (!wanted.binary) return json_output(call, layout, wanted);
    binary_output(call, layout, wanted);
    return true;
  }

  void binary_output(const Call& call, const ReplyLayout& layout, const Wanted& wanted) {
    std::size_t size = 0;
    for (std::int64_t row = 0; row < call.rows; ++row)
      size += binary_.emplace_back(layout.data(row, wanted.output)).size();
    json_ += R"(,"parameters":{"binary_data_size":)";
    number(size);
    json_ += '}';
  }

  bool json_output(const Call& call, const ReplyLayout& layout, const Wanted& wanted) {
    const Spec& spec = call.model->outputs[wanted.output];
    json_ += R"(,"data":[)";
    no_text_ = {spec.name, {}};
    for (std::int64_t row = 0; row < call.rows; ++row) {
      const std::string_view data = layout.data(row, wanted.output);
      if (spec.type->kind != Kind::kBytes) elements(*spec.type, data.data(), data.size());
      else if (!texts(data)) return false;
    }
    if (json_.back() == ',') json_.pop_back();
    json_ += ']';
    return true;
  }

  bool texts(std::string_view data) {
    for (; !data.empty(); ++no_text_.number) {
      std::uint32_t length = 0;
      if (data.size() >= sizeof length) std::memcpy(&length, data.data(), sizeof length);
      if (data.size() < sizeof length || length > data.size() - sizeof length) {
        no_text_.is_broken = true;
        return false;
      }
      no_text_.element = data.substr(sizeof length, length);
      if (!is_utf8(no_text_.element)) return false;
      quoted(no_text_.element);
      json_ += ',';
      data.remove_prefix(sizeof length + length);
    }
    return true;
  }

  void elements(const Datatype& type, const char* data, std::size_t size) {
    switch (type.kind) {
      case Kind::kBool: return for_each<std::uint8_t>(data, size, [this](auto v) { json_ += v ? "true" : "false"; });
      case Kind::kF16:
        return for_each<std::uint16_t>(data, size, [this](auto bits) { json_ += HalfTexts::instance()[bits]; });
      case Kind::kF32: return for_each<float>(data, size, [this](float v) { real(v); });
      case Kind::kF64: return for_each<double>(data, size, [this](double v) { real(v); });
      default:  // nothing for BF16, which the protocol does not have in JSON
        return visit_whole(type.kind, [&](auto zero) { whole<decltype(zero)>(data, size); });
    }
  }

  template <class T, class Write>
  void for_each(const char* data, std::size_t size, Write write) {
    for (std::size_t at = 0; at + sizeof(T) <= size; at += sizeof(T)) {
      T value;
      std::memcpy(&value, data + at, sizeof value);
      write(value);
      json_ += ',';
    }
  }

  template <class T>
  void whole(const char* data, std::size_t size) {
    for_each<T>(data, size, [this](T v) { number(v); });
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

  void quoted(std::string_view text) { append_quoted(json_, text); }

  std::string head_, json_, date_, packed_;
  std::unique_ptr<Deflater> deflaters_[2];  // of deflate and of gzip, once they are needed
  NoText no_text_;
  bool closes_ = false;
  std::vector<std::string_view> binary_;
  std::vector<iovec> pieces_;
  std::time_t dated_ = -1;
};

}  // namespace astrarium::protocol
