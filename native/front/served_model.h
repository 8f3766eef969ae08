// What a network thread knows of a model that it reads calls of.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/units.h"
#include "front/shape_numbers.h"
#include "front/token_inputs.h"
#include "protocol/answer.h"
#include "protocol/plain_calls.h"

namespace astrarium::front {

// Bytes of one item of all these tensors, or nothing where they vary (fixed_bytes in astrarium.serving.live.layout).
inline std::optional<std::size_t> fixed_bytes(const std::vector<protocol::Spec>& specs) {
  std::size_t sum = 0;
  for (const protocol::Spec& spec : specs) {
    std::size_t size = spec.type->bytes;
    if (size == 0) return std::nullopt;
    for (const std::int64_t length : spec.item) {
      if (length < 0) return std::nullopt;
      size *= static_cast<std::size_t>(length);
    }
    sum += protocol::aligned(size);
  }
  return sum;
}

// Each thread has one of its own: threads that count references to the same object wait for each other.
struct ServedModel : protocol::Model {
  std::vector<std::string> applications;
  std::vector<std::size_t> limited;     // which inputs take not every number
  std::optional<ShapeNumbers> numbers;  // of items with several open dimensions
  std::optional<TokenInputs> tokens;    // where clients send texts: what workers get
  bool fixed_inputs = false;
  std::optional<std::size_t> reply_bytes;  // of one row, where no output varies
  mutable protocol::ReplyLayout layout;    // of an answer whose outputs do not vary; where it lies is filled in

  ServedModel(protocol::Model model, std::vector<std::string> applications,
              std::optional<ShapeNumbers> numbers = std::nullopt, std::optional<TokenInputs> tokens = std::nullopt)
      : protocol::Model(std::move(model)),
        applications(std::move(applications)),
        numbers(std::move(numbers)),
        tokens(std::move(tokens)) {
    for (std::size_t at = 0; at < inputs.size(); ++at)
      if (inputs[at].limits) limited.push_back(at);
    fixed_inputs = fixed_bytes(inputs).has_value();
    reply_bytes = fixed_bytes(outputs);
    if (reply_bytes) layout = protocol::fixed_layout(*this, nullptr, 0);
  }

  // Bytes for the answer to each row of inputs of this size (TensorStore._bytes_of_reply in
  // astrarium.server.control.calls.tensor_store).
  std::size_t reply_capacity(std::size_t input_bytes, std::size_t rows) const {
    constexpr std::size_t kLeast = 1 << 14;  // for an answer whose size nobody knows beforehand
    return reply_bytes ? *reply_bytes : protocol::aligned(std::max((input_bytes + rows - 1) / rows, kLeast));
  }

  // How long the rows of a call are: as its longest input is, or as the number of their shape says.
  int length_of(const protocol::Call& call) const {
    if (numbers && call.inputs.size() == inputs.size()) return static_cast<int>(numbers->of(call));
    std::int64_t longest = 0;
    for (std::size_t at = 0; !fixed_inputs && at < inputs.size() && at < call.inputs.size(); ++at)
      longest = std::max(longest, inputs[at].length(call.inputs[at].shape));
    return static_cast<int>(std::min<std::int64_t>(longest, std::numeric_limits<int>::max()));
  }

  // Time for a call; 0: it asks for a priority that there is not.
  Time objective_of(const protocol::Call& call) const {
    const Time objective = own_objective(call);
    return call.patience ? std::min(objective, call.patience) : objective;
  }
  Time own_objective(const protocol::Call& call) const {
    if (call.timeout_us) return 1000 * call.timeout_us;
    if (!call.priority || priorities.empty()) return objective;
    const auto match = priorities.find(call.priority);
    return match == priorities.end() ? 0 : match->second;
  }

  // The number of a call's application; for models without applications any tag will do. -1: there is none.
  int application_of(const protocol::Call& call) const {
    if (applications.empty() || call.application.empty()) return 0;
    const auto match = std::find(applications.begin(), applications.end(), call.application);
    return match == applications.end() ? -1 : static_cast<int>(match - applications.begin());
  }

  // Whether calls that were read for another model of this name are right for this one.
  bool takes_calls_of(const ServedModel& other) const {
    return index == other.index && version == other.version && max_batch == other.max_batch && inputs == other.inputs &&
           outputs == other.outputs && tokens.has_value() == other.tokens.has_value() &&
           (!tokens || tokens->tokenizer == other.tokens->tokenizer);
  }

  // Whether a call allows the model its objective, so that a refusal is not the call's own fault.
  bool was_promised(const protocol::Call& call) const {
    return (!call.timeout_us || 1000 * call.timeout_us >= objective) && (!call.patience || call.patience >= objective);
  }
};

// The model of this name as it is served now; nothing where none is.
inline const ServedModel* served(const protocol::PlainCalls& calls, std::string_view name) {
  std::string_view why;
  const auto* model = calls.find(name, why);
  return model == nullptr ? nullptr : static_cast<const ServedModel*>(model->get());
}

}  // namespace astrarium::front
