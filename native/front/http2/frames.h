// Frames of HTTP/2 (RFC 9113): their heads, and those that we send.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace astrarium::front {

enum class Frame : std::uint8_t {
  kData,
  kHeaders,
  kPriority,
  kReset,
  kSettings,
  kPush,
  kPing,
  kGoAway,
  kWindow,
  kContinuation
};
enum FrameFlag : std::uint8_t { kAck = 0x1, kEndStream = 0x1, kEndHeaders = 0x4, kPadded = 0x8, kHasPriority = 0x20 };
enum class Http2Error : std::uint32_t {
  kNone = 0,
  kProtocol = 1,
  kFlowControl = 3,
  kStreamClosed = 5,
  kFrameSize = 6,
  kRefused = 7,
  kCancel = 8,
  kCompression = 9,
  kCalm = 11
};
enum class Setting : std::uint16_t { kTable = 1, kPush = 2, kStreams = 3, kWindow = 4, kFrame = 5, kHeaders = 6 };

inline constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
inline constexpr std::size_t kFrameHead = 9, kSmallestFrame = 1 << 14, kLargestFrame = (1 << 24) - 1;
inline constexpr std::int64_t kFirstWindow = (1 << 16) - 1, kLargestWindow = 0x7fffffff;
inline constexpr std::uint32_t kLastStream = 0x7fffffff;

inline std::uint32_t read_number(std::string_view data, std::size_t at, std::size_t bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<unsigned char>(data[at + i]);
  return value;
}

inline void append_number(std::string& out, std::uint32_t value, int bytes) {
  while (bytes-- > 0) out.push_back(static_cast<char>(value >> 8 * bytes));
}

struct FrameHead {
  std::size_t size = 0;
  Frame type{};
  std::uint8_t flags = 0;
  std::uint32_t stream = 0;

  // Of data that has at least as many bytes as a head.
  static FrameHead read(std::string_view data) {
    return {read_number(data, 0, 3), static_cast<Frame>(data[3]), static_cast<std::uint8_t>(data[4]),
            read_number(data, 5, 4) & kLastStream};
  }
};

inline void append_head(std::string& out, std::size_t size, Frame type, unsigned flags, std::uint32_t stream) {
  append_number(out, static_cast<std::uint32_t>(size), 3);
  out.push_back(static_cast<char>(type));
  out.push_back(static_cast<char>(flags));
  append_number(out, stream, 4);
}

inline void append_setting(std::string& out, Setting setting, std::uint32_t value) {
  append_number(out, static_cast<std::uint32_t>(setting), 2);
  append_number(out, value, 4);
}

inline void append_window(std::string& out, std::uint32_t stream, std::int64_t more) {
  append_head(out, 4, Frame::kWindow, 0, stream);
  append_number(out, static_cast<std::uint32_t>(more), 4);
}

inline void append_reset(std::string& out, std::uint32_t stream, Http2Error error) {
  append_head(out, 4, Frame::kReset, 0, stream);
  append_number(out, static_cast<std::uint32_t>(error), 4);
}

inline void append_go_away(std::string& out, std::uint32_t last, Http2Error error, std::string_view why) {
  append_head(out, 8 + why.size(), Frame::kGoAway, 0, 0);
  append_number(out, last, 4);
  append_number(out, static_cast<std::uint32_t>(error), 4);
  out += why;
}

inline void append_ping(std::string& out, std::string_view data, bool ack) {
  append_head(out, data.size(), Frame::kPing, ack ? kAck : 0, 0);
  out += data;
}

}  // namespace astrarium::front
