// Clients send a model texts, and a tokenizer makes its inputs of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "exchange/text_queue.h"
#include "protocol/call.h"
#include "tensors/bytes_layout.h"
#include "tensors/model.h"

namespace astrarium::front {

// The texts of a call, or pairs, by row.
inline std::vector<std::vector<std::string>> texts_of(const protocol::Call& call) {
  std::vector<std::vector<std::string>> texts(static_cast<std::size_t>(call.rows));
  for (const protocol::Input& input : call.inputs) {
    std::string_view left = input.data;
    for (std::vector<std::string>& parts : texts) parts.emplace_back(protocol::next_element(left));
  }
  return texts;
}

struct TokenInputs {
  int tokenizer;                      // its number
  std::vector<protocol::Spec> specs;  // of what workers get

  // Whether their sizes vary.
  bool are_open() const {
    return std::any_of(specs.begin(), specs.end(), [](const protocol::Spec& spec) {
      return std::count_if(spec.item.begin(), spec.item.end(), [](std::int64_t size) { return size < 0; }) > 0;
    });
  }

  // As workers are told of them.
  std::vector<Written> shapes(const Tokens& tokens) const {
    std::vector<Written> shapes;
    for (std::size_t at = 0; at < specs.size(); ++at) {
      const std::size_t count = tokens.inputs[at].size();
      shapes.push_back({{1, static_cast<std::int64_t>(count)}, count * specs[at].type->bytes});
    }
    return shapes;
  }
  static std::size_t block_bytes(const std::vector<Written>& shapes) {
    std::size_t size = 0;
    for (const Written& tensor : shapes) size += protocol::aligned(tensor.bytes);
    return size;
  }
  int length(const std::vector<Written>& shapes) const {
    std::int64_t longest = 0;
    for (std::size_t at = 0; at < specs.size(); ++at) longest = std::max(longest, specs[at].length(shapes[at].shape));
    return static_cast<int>(std::min<std::int64_t>(longest, std::numeric_limits<int>::max()));
  }

  // One after the other, as tensors lie.
  void write(const Tokens& tokens, char* to) const {
    for (std::size_t at = 0; at < specs.size(); ++at) {
      const std::vector<std::int64_t>& numbers = tokens.inputs[at];
      const std::size_t size = protocol::visit_whole(specs[at].type->kind, [&](auto zero) -> std::size_t {
        using Number = decltype(zero);
        std::transform(numbers.begin(), numbers.end(), reinterpret_cast<Number*>(to),
                       [](std::int64_t number) { return static_cast<Number>(number); });
        return numbers.size() * sizeof(Number);
      });
      to = protocol::Call::clear_gap(to, size);
    }
  }
};

}  // namespace astrarium::front
