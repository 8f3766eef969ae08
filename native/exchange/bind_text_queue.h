// The queue of texts, as threads that tokenize see it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/python_bytes.h"
#include "exchange/text_queue.h"

namespace astrarium::front {

namespace nb = nanobind;

// Somebody hears of each text what became of it, even where whoever took the batch breaks.
class BoundTextBatch {
 public:
  BoundTextBatch(TextQueue& queue, TextBatch batch) : queue_(queue), batch_(std::move(batch)) {}
  ~BoundTextBatch() {
    if (is_given_) return;
    const Tokens lost = Tokens::refused(Fault::kModel, "its text could not be tokenized");
    const std::size_t count = batch_.texts.size();
    queue_.give(std::move(batch_), std::vector(count, lost));
  }
  BoundTextBatch(const BoundTextBatch&) = delete;
  BoundTextBatch& operator=(const BoundTextBatch&) = delete;

  int model() const { return batch_.model; }
  std::size_t size() const { return batch_.texts.size(); }
  int tokenizer() const { return batch_.texts.empty() ? -1 : batch_.texts.front().tokenizer; }
  const std::vector<std::int64_t>& late() const { return batch_.late; }

  // Of each part no more than *most* bytes, and one that says that there were more.
  nb::list texts(std::size_t most, bool from_end) const {
    nb::list all;
    for (const Text& text : batch_.texts) {
      nb::list parts;
      for (std::string_view part : text.parts) {
        const std::size_t cut = part.size() > most ? part.size() - most - 1 : 0;
        from_end ? part.remove_prefix(cut) : part.remove_suffix(cut);
        parts.append(as_bytes(part));
      }
      all.append(nb::tuple(parts));
    }
    return all;
  }

  std::vector<std::pair<std::size_t, std::int64_t>> own() const {
    std::vector<std::pair<std::size_t, std::int64_t>> places;
    for (std::size_t at = 0; at < batch_.texts.size(); ++at)
      if (batch_.texts[at].owner == nullptr) places.push_back({at, batch_.texts[at].number});
    return places;
  }

  void give(nb::list made) {
    if (is_given_ || made.size() != batch_.texts.size()) throw std::invalid_argument("one for each text, and once");
    std::vector<Tokens> all;
    for (std::size_t at = 0; at < batch_.texts.size(); ++at)
      all.push_back(batch_.texts[at].owner == nullptr ? Tokens{} : tokens_of(made[at]));
    is_given_ = true;
    nb::gil_scoped_release release;
    queue_.give(std::move(batch_), std::move(all));
  }

 private:
  static Tokens tokens_of(nb::handle made) {
    if (nb::isinstance<nb::tuple>(made)) {
      auto [fault, reason] = nb::cast<std::pair<int, std::string>>(made);
      return Tokens::refused(static_cast<Fault>(fault), std::move(reason));
    }
    Tokens tokens;
    tokens.inputs = nb::cast<std::vector<std::vector<std::int64_t>>>(made);
    return tokens;
  }

  TextQueue& queue_;
  TextBatch batch_;
  bool is_given_ = false;
};

// Python's to end.
inline BoundTextBatch* bound(TextQueue& queue, std::optional<TextBatch> batch) {
  return batch ? new BoundTextBatch(queue, std::move(*batch)) : nullptr;
}

inline Text text_of(nb::list parts, int tokenizer, Time since, Time deadline, Time needed, std::int64_t number) {
  Text text{{}, tokenizer, since, deadline, needed, nullptr, nullptr, number};
  for (nb::handle part : parts) {
    const auto bytes = nb::cast<nb::bytes>(part);
    text.parts.emplace_back(bytes.c_str(), bytes.size());
  }
  return text;
}

inline void bind_text_batch(nb::module_& m) {
  using namespace nb::literals;
  using B = BoundTextBatch;
  nb::class_<B>(m, "TextBatch", "A text batch is what waits of one model, for one tokenizer.")
      .def_prop_ro("model", &B::model, "Whose texts they are.")
      .def_prop_ro("tokenizer", &B::tokenizer, "The number of the tokenizer; -1: there are no texts.")
      .def_prop_ro("late", &B::late, "The numbers of Python's calls that were to have come, and whose time is over.")
      .def_prop_ro("size", &B::size, "How many texts there are.")
      .def("texts", &B::texts, "most"_a, "from_end"_a,
           nb::sig("def texts(self, most: int, from_end: bool) -> list[tuple[bytes, ...]]"),
           "Return the texts, or pairs: of each no more bytes than so many and one.")
      .def("own", &B::own, "Return the places of Python's own texts, each with its number.")
      .def("give", &B::give, "made"_a, nb::sig("def give(self, made: list[list[list[int]] | tuple[int, str]]) -> None"),
           "Give the numbers for each text, by input of the model; or whose fault it is that there are none (0: the "
           "model's, 1: the client's, 2: it is too long), and why. Python has its own already.");
}

inline void bind_text_queue(nb::module_& m) {
  using namespace nb::literals;
  bind_text_batch(m);
  nb::class_<TextQueue>(m, "TextQueue", "In the text queue the texts of all models wait to become tokens.")
      .def(nb::init<std::size_t, std::size_t>(), "models"_a, "most_bytes"_a)
      .def("is_full", &TextQueue::is_full, "model"_a, "size"_a, "slack"_a, "now"_a,
           "Return whether a text of so many bytes would wait for most of its slack, or finds no place.")
      .def("open", &TextQueue::open, "model"_a,
           "Return how many texts of a model wait for tokens, or are to have them now.")
      .def(
          "put",
          [](TextQueue& self, int model, nb::list parts, int tokenizer, Time since, Time deadline, Time needed,
             std::int64_t number) {
            return self.put(model, text_of(parts, tokenizer, since, deadline, needed, number));
          },
          "model"_a, "parts"_a, "tokenizer"_a, "since"_a, "deadline"_a, "needed"_a, "number"_a,
          nb::sig("def put(self, model: int, parts: list[bytes], tokenizer: int, since: int, deadline: int, "
                  "needed: int, number: int) -> bool"),
          "Put a text of Python's own, under a number; return False where nobody tokenizes any more.")
      .def(
          "take",
          [](TextQueue& self) {
            std::optional<TextBatch> batch;
            {
              nb::gil_scoped_release release;
              batch = self.take(TextQueue::kAtOnce, monotonic_ns);
            }
            return bound(self, std::move(batch));
          },
          nb::rv_policy::take_ownership, nb::keep_alive<0, 1>(), nb::sig("def take(self) -> TextBatch | None"),
          "Wait for texts, and take those of a model; return None once the queue is closed.")
      .def(
          "try_take", [](TextQueue& self, Time now) { return bound(self, self.try_take(TextQueue::kAtOnce, now)); },
          "now"_a, nb::rv_policy::take_ownership, nb::keep_alive<0, 1>(),
          nb::sig("def try_take(self, now: int) -> TextBatch | None"),
          "Take the texts of a model, if any can be taken.")
      .def("close", &TextQueue::close, nb::call_guard<nb::gil_scoped_release>(),
           "End all that wait, and wake all who take.")
      .def_ro_static("AT_ONCE", &TextQueue::kAtOnce, "How many bytes are taken at once.");
}

}  // namespace astrarium::front
