// The items of a batch, copied between shared memory and arrays in one call. serving/live/backends/batches.py says in
// Python what this does, and serving/live/messages.py how members are packed.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace astrarium::protocol {

static_assert(std::endian::native == std::endian::little, "members and tensors are little-endian");

struct Member {
  std::int64_t block, rows, row, reply, reply_bytes, application;
};
static_assert(sizeof(Member) == 48);

// Wide enough for any product of two numbers that a message can hold.
using Wide = __int128;

inline Wide aligned_wide(Wide size) {
  constexpr int kAlignment = 64;  // ALIGNMENT in astrarium.serving.live.layout
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

struct Copy {
  char* to;
  const char* from;
  std::size_t size;
};

inline std::vector<Member> unpacked(std::string_view packed) {
  if (packed.size() % sizeof(Member) != 0) {
    throw std::invalid_argument("members: expected rows of 48 bytes, got " + std::to_string(packed.size()) + " bytes");
  }
  std::vector<Member> members(packed.size() / sizeof(Member));
  if (!packed.empty()) std::memcpy(members.data(), packed.data(), packed.size());
  return members;
}

inline std::string of_member(std::size_t place) { return "member " + std::to_string(place) + ": "; }

inline std::string of_memory(std::size_t size) {
  return " outside of the " + std::to_string(size) + " bytes of shared memory";
}

// The sizes are those of an item of each tensor; the arrays hold that for every member.
inline void check_arrays(const std::vector<std::size_t>& sizes, const std::vector<std::size_t>& arrays,
                         std::size_t members) {
  if (sizes.size() != arrays.size()) throw std::invalid_argument("arrays: one for each size");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != 0 && (arrays[i] % sizes[i] != 0 || arrays[i] / sizes[i] != members)) {
      throw std::invalid_argument("arrays: expected " + std::to_string(members) + " items of " +
                                  std::to_string(sizes[i]) + " bytes, got " + std::to_string(arrays[i]) + " bytes");
    }
  }
}

// From where each item lies in its block to its place in the arrays.
inline std::vector<Copy> gathering(std::string_view memory, const std::vector<Member>& members,
                                   const std::vector<std::size_t>& sizes, const std::vector<char*>& arrays) {
  std::vector<Copy> copies;
  copies.reserve(members.size() * sizes.size());
  for (std::size_t place = 0; place < members.size(); ++place) {
    const Member& member = members[place];
    if (member.row < 0 || member.row >= member.rows) {
      throw std::invalid_argument(of_member(place) + "there is no row " + std::to_string(member.row) +
                                  " in a block of " + std::to_string(member.rows));
    }
    Wide at = member.block;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Wide start = at + Wide{member.row} * static_cast<Wide>(sizes[i]);
      if (start < 0 || start + static_cast<Wide>(sizes[i]) > static_cast<Wide>(memory.size())) {
        throw std::invalid_argument(of_member(place) + "row " + std::to_string(member.row) + " of the block at " +
                                    std::to_string(member.block) + " lies" + of_memory(memory.size()));
      }
      copies.push_back({arrays[i] + place * sizes[i], memory.data() + static_cast<std::size_t>(start), sizes[i]});
      at += aligned_wide(Wide{member.rows} * static_cast<Wide>(sizes[i]));
    }
  }
  return copies;
}

inline Wide bytes_needed(const std::vector<std::size_t>& sizes) {
  Wide needed = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    needed = aligned_wide(needed) + static_cast<Wide>(sizes[i]);
  }
  return needed;
}

// From the arrays to the reply block of each member.
inline std::vector<Copy> scattering(char* memory, std::size_t size, const std::vector<Member>& members,
                                    const std::vector<std::size_t>& sizes, const std::vector<char*>& arrays) {
  const auto smaller = [](const Member& member, const Member& other) { return member.reply_bytes < other.reply_bytes; };
  const auto least = std::min_element(members.begin(), members.end(), smaller);
  if (least != members.end() && bytes_needed(sizes) > least->reply_bytes) {
    throw std::invalid_argument("an answer needs more than the " + std::to_string(least->reply_bytes) +
                                " bytes kept for it");
  }
  std::vector<Copy> copies;
  copies.reserve(members.size() * sizes.size());
  for (std::size_t place = 0; place < members.size(); ++place) {
    const Member& member = members[place];
    if (member.reply < 0 || Wide{member.reply} + member.reply_bytes > static_cast<Wide>(size)) {
      throw std::invalid_argument(of_member(place) + "the " + std::to_string(member.reply_bytes) +
                                  " bytes for a reply at " + std::to_string(member.reply) + " lie" + of_memory(size));
    }
    std::size_t at = static_cast<std::size_t>(member.reply);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      copies.push_back({memory + at, arrays[i] + place * sizes[i], sizes[i]});
      at += static_cast<std::size_t>(aligned_wide(static_cast<Wide>(sizes[i])));
    }
  }
  return copies;
}

// One thread: it copies 14 GB/s, while the GPU works on the batch before; starting others was measured to cost more
// than they bring for batches of up to 10 MB on busy cores.
inline void copy_all(const std::vector<Copy>& copies) {
  for (const Copy& copy : copies) {
    if (copy.size != 0) std::memcpy(copy.to, copy.from, copy.size);  // an array of nothing may be nowhere
  }
}

}  // namespace astrarium::protocol
