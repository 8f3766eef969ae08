// HPACK (RFC 7541): the header fields of HTTP/2, as clients compress them and as we write them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "front/http2/fields.h"

namespace astrarium::front {

// The code of appendix B. It is canonical: the codes follow from their lengths.
class Huffman {
 public:
  static const Huffman& code() {
    static const Huffman only;
    return only;
  }

  // False where *data* is no text in this code.
  bool decode(std::string_view data, std::string& text) const {
    std::uint16_t node = 0;
    for (const char byte : data)
      for (const int shift : {4, 0}) {
        const Step& step = steps_[node][static_cast<unsigned char>(byte) >> shift & 15];
        if (step.fails) return false;
        if (step.emits) text += static_cast<char>(step.symbol);
        node = step.next;
      }
    return may_end_[node];
  }

 private:
  static constexpr int kSymbols = 257, kEnd = 256, kNodes = 256, kLongest = 30;
  static constexpr std::array<std::uint8_t, kSymbols> kLengths = {
      13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
      28, 28, 28, 28, 28, 28, 6,  10, 10, 12, 13, 6,  8,  11, 10, 10, 8,  11, 8,  6,  6,  6,  5,  5,  5,  6,
      6,  6,  6,  6,  6,  6,  7,  8,  15, 6,  12, 10, 13, 6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,
      7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8,  13, 19, 13, 14, 6,  15, 5,  6,  5,  6,  5,  6,  6,
      6,  5,  7,  7,  6,  6,  6,  5,  6,  7,  6,  5,  5,  6,  7,  7,  7,  7,  7,  15, 11, 14, 13, 28, 20, 22,
      20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23,
      22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22,
      23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
      19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22,
      25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30};
  struct Step {
    std::uint16_t next = 0;
    std::uint8_t symbol = 0;
    bool emits = false, fails = false;
  };
  // A child is a node, or ~symbol.
  using Tree = std::array<std::array<int, 2>, kNodes>;

  Huffman() {
    const Tree tree = grown();
    for (int node = 0; node < kNodes; ++node)
      for (unsigned nibble = 0; nibble < 16; ++nibble)
        steps_[static_cast<std::size_t>(node)][nibble] = step(tree, node, nibble);
    // What is left of the last byte is filled with the first bits of the end's code: ones, fewer than eight.
    for (int node = 0, depth = 0; depth < 8; ++depth, node = tree[static_cast<std::size_t>(node)][1])
      may_end_[static_cast<std::size_t>(node)] = true;
  }

  static Tree grown() {
    Tree tree{};
    int nodes = 1;
    std::uint32_t code = 0;
    for (int length = 1; length <= kLongest; ++length, code <<= 1)
      for (int symbol = 0; symbol < kSymbols; ++symbol)
        if (kLengths[static_cast<std::size_t>(symbol)] == length) plant(tree, nodes, code++, length, symbol);
    return tree;
  }

  static void plant(Tree& tree, int& nodes, std::uint32_t code, int length, int symbol) {
    std::size_t node = 0;
    for (int bit = length - 1; bit > 0; --bit) {
      int& child = tree[node][code >> bit & 1];
      if (child == 0) child = nodes++;
      node = static_cast<std::size_t>(child);
    }
    tree[node][code & 1] = ~symbol;
  }

  static Step step(const Tree& tree, int node, unsigned nibble) {
    Step result;
    for (int bit = 3; bit >= 0; --bit) {
      node = tree[static_cast<std::size_t>(node)][nibble >> bit & 1];
      if (node >= 0) continue;
      result.emits = true;
      result.symbol = static_cast<std::uint8_t>(~node);
      result.fails |= ~node == kEnd;
      node = 0;
    }
    result.next = static_cast<std::uint16_t>(node);
    return result;
  }

  std::array<std::array<Step, 16>, kNodes> steps_;
  std::array<bool, kNodes> may_end_{};
};

// Appendix A.
inline constexpr std::pair<std::string_view, std::string_view> kStaticFields[] = {{":authority", ""},
                                                                                  {":method", "GET"},
                                                                                  {":method", "POST"},
                                                                                  {":path", "/"},
                                                                                  {":path", "/index.html"},
                                                                                  {":scheme", "http"},
                                                                                  {":scheme", "https"},
                                                                                  {":status", "200"},
                                                                                  {":status", "204"},
                                                                                  {":status", "206"},
                                                                                  {":status", "304"},
                                                                                  {":status", "400"},
                                                                                  {":status", "404"},
                                                                                  {":status", "500"},
                                                                                  {"accept-charset", ""},
                                                                                  {"accept-encoding", "gzip, deflate"},
                                                                                  {"accept-language", ""},
                                                                                  {"accept-ranges", ""},
                                                                                  {"accept", ""},
                                                                                  {"access-control-allow-origin", ""},
                                                                                  {"age", ""},
                                                                                  {"allow", ""},
                                                                                  {"authorization", ""},
                                                                                  {"cache-control", ""},
                                                                                  {"content-disposition", ""},
                                                                                  {"content-encoding", ""},
                                                                                  {"content-language", ""},
                                                                                  {"content-length", ""},
                                                                                  {"content-location", ""},
                                                                                  {"content-range", ""},
                                                                                  {"content-type", ""},
                                                                                  {"cookie", ""},
                                                                                  {"date", ""},
                                                                                  {"etag", ""},
                                                                                  {"expect", ""},
                                                                                  {"expires", ""},
                                                                                  {"from", ""},
                                                                                  {"host", ""},
                                                                                  {"if-match", ""},
                                                                                  {"if-modified-since", ""},
                                                                                  {"if-none-match", ""},
                                                                                  {"if-range", ""},
                                                                                  {"if-unmodified-since", ""},
                                                                                  {"last-modified", ""},
                                                                                  {"link", ""},
                                                                                  {"location", ""},
                                                                                  {"max-forwards", ""},
                                                                                  {"proxy-authenticate", ""},
                                                                                  {"proxy-authorization", ""},
                                                                                  {"range", ""},
                                                                                  {"referer", ""},
                                                                                  {"refresh", ""},
                                                                                  {"retry-after", ""},
                                                                                  {"server", ""},
                                                                                  {"set-cookie", ""},
                                                                                  {"strict-transport-security", ""},
                                                                                  {"transfer-encoding", ""},
                                                                                  {"user-agent", ""},
                                                                                  {"vary", ""},
                                                                                  {"via", ""},
                                                                                  {"www-authenticate", ""}};
inline constexpr std::size_t kStatic = std::size(kStaticFields);
// Bytes that a field counts for besides its text, in a table or a head.
inline constexpr std::size_t kFieldOverhead = 32;

// Reads the header blocks of one connection, in their order.
class HpackDecoder {
 public:
  // *most*: bytes of the dynamic table that the other side may use.
  explicit HpackDecoder(std::size_t most = 4096) : most_(most), limit_(most) {}

  // Calls `take(name, value, clean)` for each field; it is clean if name and value have only characters that they may
  // have. False where the block cannot be read to its end: then no other can be read either.
  template <class Take>
  bool decode(std::string_view block, Take take) {
    left_ = block;
    const bool whole = decode_all(take);
    protocol::trim(name_, kKept);
    protocol::trim(value_, kKept);
    return whole;
  }

  std::size_t table_bytes() const { return used_; }

 private:
  static constexpr std::size_t kKept = 4096;  // bytes of memory, for the next block
  // What is entered into the table is checked once, however often a client refers to it.
  struct Field {
    std::string name, value;
    bool clean_name, clean_value;
    std::size_t size() const { return name.size() + value.size() + kFieldOverhead; }
  };
  struct FoundField {
    std::string_view name, value;
    bool clean_name = true, clean_value = true;
  };

  template <class Take>
  bool decode_all(Take& take) {
    bool resizes = true;  // only at the beginning of a block
    while (!left_.empty()) {
      const auto first = static_cast<unsigned char>(left_[0]);
      if ((first & 0xe0) == 0x20) {
        if (!resizes || !resize()) return false;
        continue;
      }
      resizes = false;
      if (!(first & 0x80 ? indexed(take) : literal(first, take))) return false;
    }
    return true;
  }

  template <class Take>
  bool indexed(Take& take) {
    std::size_t index = 0;
    FoundField field;
    if (!integer(7, index) || !look_up(index, field)) return false;
    take(field.name, field.value, field.clean_name && field.clean_value);
    return true;
  }

  template <class Take>
  bool literal(unsigned char first, Take& take) {
    const bool keeps = first & 0x40;
    std::size_t index = 0;
    FoundField field;
    if (!integer(keeps ? 6 : 4, index)) return false;
    if (!(index ? look_up(index, field) : text(field.name, name_)) || !text(field.value, value_)) return false;
    if (!index) field.clean_name = is_field_name(field.name);
    field.clean_value = is_field_value(field.value);
    take(field.name, field.value, field.clean_name && field.clean_value);
    if (keeps) keep({std::string(field.name), std::string(field.value), field.clean_name, field.clean_value});
    return true;
  }

  bool resize() {
    std::size_t size = 0;
    if (!integer(5, size) || size > most_) return false;
    limit_ = size;
    evict(limit_);
    return true;
  }

  bool look_up(std::size_t index, FoundField& result) const {
    if (index == 0 || index > kStatic + table_.size()) return false;
    if (index <= kStatic) {
      std::tie(result.name, result.value) = kStaticFields[index - 1];
      return true;
    }
    const Field& field = table_[index - kStatic - 1];
    result = {field.name, field.value, field.clean_name, field.clean_value};
    return true;
  }

  void keep(Field field) {
    const std::size_t size = field.size();
    if (size > limit_) return evict(0);
    evict(limit_ - size);
    used_ += size;
    table_.push_front(std::move(field));
  }

  void evict(std::size_t most) {
    while (used_ > most) {
      used_ -= table_.back().size();
      table_.pop_back();
    }
  }

  bool integer(int prefix, std::size_t& value) {
    constexpr int kMostShift = 21;  // four bytes: more than any block has
    const std::size_t ones = (std::size_t{1} << prefix) - 1;
    value = static_cast<unsigned char>(left_[0]) & ones;
    left_.remove_prefix(1);
    if (value < ones) return true;
    for (int shift = 0; shift <= kMostShift && !left_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(left_[0]);
      left_.remove_prefix(1);
      value += static_cast<std::size_t>(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  bool text(std::string_view& value, std::string& buffer) {
    if (left_.empty()) return false;
    const bool coded = left_[0] & 0x80;
    std::size_t size = 0;
    if (!integer(7, size) || size > left_.size()) return false;
    value = left_.substr(0, size);
    left_.remove_prefix(size);
    if (!coded) return true;
    buffer.clear();
    const bool decoded = Huffman::code().decode(value, buffer);
    value = buffer;
    return decoded;
  }

  std::string_view left_;
  std::string name_, value_;  // of the field that is being read
  std::size_t most_, limit_, used_ = 0;
  std::deque<Field> table_;  // the newest first
};

// Fields are written as they are: the other side needs no table for them.

inline void append_hpack_size(std::string& out, std::size_t size) {
  constexpr std::size_t kOnes = 127;
  if (size < kOnes) return out.push_back(static_cast<char>(size));
  out.push_back(static_cast<char>(kOnes));
  for (size -= kOnes; size > 127; size >>= 7) out.push_back(static_cast<char>(size | 128));
  out.push_back(static_cast<char>(size));
}

inline void append_field(std::string& out, std::string_view name, std::string_view value) {
  out.push_back('\0');
  append_hpack_size(out, name.size());
  out += name;
  append_hpack_size(out, value.size());
  out += value;
}

}  // namespace astrarium::front
