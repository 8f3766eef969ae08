// A call is one inference request that goes the short way: checked against its model, its tensors ready to be placed.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/http_head.h"
#include "tensors/model.h"

namespace astrarium::protocol {

inline constexpr std::size_t kLongestTag = 256, kMostDimensions = 32;
// Bytes of JSON in a request, or of elements that its answer has in JSON: reading or writing more takes so long (20 ms
// and more) that the long way does it, in a thread.
inline constexpr std::size_t kMostJson = 1 << 20;
// Bytes of JSON beside the elements of tensors: LARGE in server/settings.py, which the long way holds to the byte.
inline constexpr std::size_t kMostBeside = 256 << 10;
// Bytes of an answer: a larger one is copied, page by page, for longer (60 ms) than others should wait.
inline constexpr std::size_t kMostAnswer = 32 << 20;

// Of parameters: microseconds, and a level.
inline constexpr std::int64_t kLongestTimeout = 1'000'000'000'000'000, kLargestPriority = 0xffffffff;

// Where a tensor lies that is not in the message: a part of a region of shared memory that the client has registered.
struct RegionPlace {
  std::string region;  // its name; empty: the tensor is in the message
  std::size_t at = 0, size = 0;

  bool is_given() const { return !region.empty(); }
  void clear() { region.clear(), at = size = 0; }
};

struct Input {
  Shape shape;
  std::string own_bytes;  // from JSON; empty where the bytes lie in the request
  std::string_view data;  // of the request, or of `own_bytes`
  RegionPlace place;      // or they lie there
  bool is_there = false;

  std::size_t bytes() const { return place.is_given() ? place.size : data.size(); }
};

struct Wanted {
  std::size_t output;
  bool binary;
  bool stated = true;      // of this output; else of all of them
  RegionPlace place = {};  // where the client wants it, if not in the answer
};

struct Call {
  std::shared_ptr<const Model> model;
  std::string id, application;
  std::vector<Input> inputs;  // in the model's order
  std::vector<Wanted> outputs;
  std::int64_t rows = 0;
  std::int64_t timeout_us = 0;  // 0: none was given
  std::int64_t priority = 0;
  Coding accepts = Coding::kNone;  // how the answer is compressed
  bool closes = false;             // the connection, after the answer
  bool timed = false;              // the answer says how long each stage took
  std::int64_t key = -1;           // the number of the API key that its client has shown; -1: there are none
  std::int64_t patience = 0;       // nanoseconds for which the client waits, whatever the objective; 0: it did not say

  // Makes it as new, for another request of any model, and keeps what memory it has.
  void clear() {
    id.clear();
    application.clear();
    outputs.clear();
    for (Input& input : inputs) {
      input.shape.clear();
      input.own_bytes.clear();
      input.data = {};
      input.place.clear();
      input.is_there = false;
    }
    rows = timeout_us = priority = patience = 0;
    accepts = Coding::kNone;
    closes = timed = false;
  }

  std::size_t block_bytes() const {
    std::size_t size = 0;
    for (const Input& input : inputs) size += aligned(input.bytes());
    return size;
  }

  bool has_regions() const {
    return std::any_of(inputs.begin(), inputs.end(), [](const Input& input) { return input.place.is_given(); }) ||
           std::any_of(outputs.begin(), outputs.end(), [](const Wanted& wanted) { return wanted.place.is_given(); });
  }

  // Tensors lie one after the other, each aligned; what lies between them is zero, so that equal inputs are equal
  // blocks. Those of regions are left out.
  void place(char* at) const {
    for (const Input& input : inputs) {
      if (!input.place.is_given()) std::memcpy(at, input.data.data(), input.data.size());
      at = clear_gap(at, input.bytes());
    }
  }
  // After a tensor of *size* bytes; returns where the next one begins.
  static char* clear_gap(char* at, std::size_t size) {
    std::memset(at + size, 0, aligned(size) - size);
    return at + aligned(size);
  }
};

}  // namespace astrarium::protocol
