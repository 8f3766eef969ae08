// A body in chunks, as HTTP/1.1 has them: each after its length, the last one empty.
#pragma once

#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>

namespace astrarium::protocol {

class Chunks {
 public:
  enum State { kPart, kWhole, kOther };

  // More of them, extensions and trailers go the long way. So looking again when more bytes are there takes no longer
  // than reading them does.
  static constexpr int kMost = 1024;

  // Where a body of at most *most* bytes ends in *data*, which begins with its first chunk.
  State find(std::string_view data, std::size_t most) {
    data_ = data;
    bytes = 0;
    size = 0;
    for (int left = kMost; left > 0; --left) {
      std::size_t length = 0;
      const State state = read_size(length);
      if (state != kWhole) return state;
      if (length > most - bytes) return kOther;
      bytes += length;
      const State ended = line_end(size + length);
      if (ended != kWhole) return ended;
      size += length + 2;
      if (length == 0) return kWhole;
    }
    return kOther;
  }

  // The body, once `find` has seen that it is whole.
  void join(std::string& out) {
    out.clear();
    out.reserve(bytes);
    std::size_t length = 0;
    for (size = 0; read_size(length) == kWhole && length > 0; size += length + 2)
      out.append(data_.substr(size, length));
    size += 2;
  }

  std::size_t size = 0;   // of all chunks; of a part: what was read of it
  std::size_t bytes = 0;  // of the body so far
  std::size_t need = 0;   // of a part: it is of no use to look again before so many bytes are here

 private:
  // The length of the next chunk, whose first byte is then at `size`.
  State read_size(std::size_t& length) {
    constexpr std::size_t kLongest = 8;  // digits
    const char* first = data_.data() + size;
    const char* end = data_.data() + data_.size();
    const auto [next, error] = std::from_chars(first, end, length, 16);
    const auto digits = static_cast<std::size_t>(next - first);
    if (next == end && digits <= kLongest) {
      need = data_.size() + 1;
      return kPart;
    }
    if (error != std::errc() || digits > kLongest) return kOther;
    const State ended = line_end(size + digits);
    if (ended == kWhole) size += digits + 2;
    return ended;
  }

  State line_end(std::size_t at) {
    if (data_.size() < at + 2) {
      need = at + 2;
      return data_.size() <= at || data_[at] == '\r' ? kPart : kOther;
    }
    return data_.substr(at, 2) == "\r\n" ? kWhole : kOther;
  }

  std::string_view data_;
};

}  // namespace astrarium::protocol
