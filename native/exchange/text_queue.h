// Texts that wait to become tokens. Who has read a call puts its text here; threads that tokenize take those of one
// model that wait, all at once, and give back tokens. Nobody waits for company, and no text is tokenized that could not
// be answered in time any more.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "exchange/ticket.h"

namespace astrarium::front {

// What became of a text.
struct Tokens {
  enum class End : std::uint8_t { kMade, kRefused, kExpired, kUnserved };

  End end = End::kMade;
  std::vector<std::vector<std::int64_t>> inputs;  // by input of the model
  Fault fault = Fault::kModel;
  std::string reason;

  static Tokens none(End end) {
    Tokens tokens;
    tokens.end = end;
    return tokens;
  }
  static Tokens refused(Fault fault, std::string reason) {
    Tokens tokens = none(End::kRefused);
    tokens.fault = fault;
    tokens.reason = std::move(reason);
    return tokens;
  }
};

// Where texts come from and tokens go to.
class TextOwner {
 public:
  struct Made {
    void* call;
    Tokens tokens;
  };
  virtual ~TextOwner() = default;
  // By any thread, and soon done.
  virtual void made(std::vector<Made> all) = 0;
};

struct Text {
  std::vector<std::string> parts;  // one, or a pair
  int tokenizer = 0;               // which one takes it: a model that is loaded anew may have another
  Time since = 0, deadline = 0;
  Time needed = 0;             // once it has tokens
  TextOwner* owner = nullptr;  // nothing: Python
  void* call = nullptr;        // the owner's
  std::int64_t number = 0;     // Python's

  std::size_t bytes() const {
    std::size_t size = 0;
    for (const std::string& part : parts) size += part.size();
    return size;
  }
};

// Texts of one model, for one tokenizer.
struct TextBatch {
  int model = 0;
  std::vector<Text> texts;
  std::vector<std::int64_t> late;  // of Python's that were to have come: their time is over
};

class TextQueue {
 public:
  // Bytes: some 5 ms of one core, after which those that came meanwhile have their turn.
  static constexpr std::size_t kAtOnce = 1 << 14;
  // Of the time that a text has: clients in closed loops may take .8 of an objective for all of it, and be it tokens.
  static constexpr double kShare = 0.85;

  // No more than *most_bytes* are kept.
  TextQueue(std::size_t models, std::size_t most_bytes) : models_(models), most_bytes_(most_bytes) {}

  // Whether a text of so many bytes would wait for longer than most of the time it has, as the first one of its model
  // has by now (the rest is the GPU's), or would not find a place. Half of all places are for other models, and
  // there is always one for a model that has none.
  bool is_full(int model, std::size_t bytes, Time slack, Time now) {
    const std::lock_guard lock(mutex_);
    const Model& asked = at(model);
    if (!asked.waiting.empty() &&
        static_cast<double>(now - asked.waiting.front().since) > kShare * static_cast<double>(slack))
      return true;
    return asked.kept > 0 && (asked.kept + bytes > most_bytes_ / 2 || kept_ + bytes > most_bytes_);
  }

  // False where nobody tokenizes any more, and nothing has happened.
  bool put(int model, Text text) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return false;
      const std::size_t size = text.bytes();
      kept_ += size;
      at(model).kept += size;
      at(model).waiting.push_back(std::move(text));
    }
    some_wait_.notify_one();
    return true;
  }

  // Waits for texts; nothing once the queue is closed. Those of a model come in their order: the next ones when
  // `give` had the ones before.
  template <class Clock>
  std::optional<TextBatch> take(std::size_t at_once, Clock clock) {
    std::unique_lock lock(mutex_);
    some_wait_.wait(lock, [this] { return closed_ || next_model(); });
    if (closed_) return std::nullopt;
    return take_from(*next_model(), at_once, clock(), lock);
  }
  // The same without waiting.
  std::optional<TextBatch> try_take(std::size_t at_once, Time now) {
    std::unique_lock lock(mutex_);
    const std::optional<std::size_t> model = next_model();
    if (closed_ || !model) return std::nullopt;
    return take_from(*model, at_once, now, lock);
  }

  // What became of each text of a batch.
  void give(TextBatch batch, std::vector<Tokens> all) {
    bool is_closed = false;
    {
      const std::lock_guard lock(mutex_);
      at(batch.model).is_taken = false;
      at(batch.model).taken = 0;
      let_go(at(batch.model), batch.texts);
      is_closed = closed_;
    }
    some_wait_.notify_one();
    if (is_closed) all.assign(batch.texts.size(), Tokens::none(Tokens::End::kUnserved));
    tell(batch.texts, std::move(all));
  }

  // Ends all that wait, unserved; Python ends its own. Nobody waits in `take` any more.
  void close() {
    std::vector<Text> unserved;
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      for (Model& model : models_) {
        std::move(model.waiting.begin(), model.waiting.end(), std::back_inserter(unserved));
        model.waiting.clear();
      }
    }
    some_wait_.notify_all();
    tell(unserved, std::vector(unserved.size(), Tokens::none(Tokens::End::kUnserved)));
  }

  // Those that become tokens now included.
  std::size_t open(int model) {
    const std::lock_guard lock(mutex_);
    return at(model).waiting.size() + at(model).taken;
  }

 private:
  struct Model {
    std::deque<Text> waiting;
    std::size_t kept = 0;   // bytes
    std::size_t taken = 0;  // texts that are being tokenized
    bool is_taken = false;
  };

  // The next one in turn that has texts and nobody who tokenizes.
  std::optional<std::size_t> next_model() const {
    for (std::size_t step = 0; step < models_.size(); ++step) {
      const std::size_t model = (next_ + step) % models_.size();
      if (!models_[model].waiting.empty() && !models_[model].is_taken) return model;
    }
    return std::nullopt;
  }

  TextBatch take_from(std::size_t model, std::size_t at_once, Time now, std::unique_lock<std::mutex>& lock) {
    next_ = model + 1;
    Model& taken = models_[model];
    TextBatch batch{static_cast<int>(model), {}, {}};
    const std::vector<Text> late = take_late(taken.waiting, now);
    let_go(taken, late);
    for (const Text& text : late)
      if (text.owner == nullptr) batch.late.push_back(text.number);
    for (std::size_t size = 0; !taken.waiting.empty() && size < at_once;) {
      if (!batch.texts.empty() && taken.waiting.front().tokenizer != batch.texts.front().tokenizer) break;
      size += taken.waiting.front().bytes();
      batch.texts.push_back(std::move(taken.waiting.front()));
      taken.waiting.pop_front();
    }
    taken.is_taken = true;
    taken.taken = batch.texts.size();
    lock.unlock();
    tell(late, std::vector(late.size(), Tokens::none(Tokens::End::kExpired)));
    return batch;
  }

  // Those that cannot be in time any more: they do not cost tokens.
  static std::vector<Text> take_late(std::deque<Text>& waiting, Time now) {
    const auto in_time = [now](const Text& text) { return now + text.needed <= text.deadline; };
    const auto first_late = std::stable_partition(waiting.begin(), waiting.end(), in_time);
    std::vector<Text> late(std::make_move_iterator(first_late), std::make_move_iterator(waiting.end()));
    waiting.erase(first_late, waiting.end());
    return late;
  }

  void let_go(Model& model, const std::vector<Text>& texts) {
    for (const Text& text : texts) {
      kept_ -= text.bytes();
      model.kept -= text.bytes();
    }
  }

  static void tell(const std::vector<Text>& texts, std::vector<Tokens> all) {
    std::map<TextOwner*, std::vector<TextOwner::Made>> by_owner;
    for (std::size_t at = 0; at < texts.size(); ++at)
      if (texts[at].owner != nullptr) by_owner[texts[at].owner].push_back({texts[at].call, std::move(all[at])});
    for (auto& [owner, made] : by_owner) owner->made(std::move(made));
  }

  Model& at(int model) { return models_.at(static_cast<std::size_t>(model)); }

  std::mutex mutex_;
  std::condition_variable some_wait_;
  std::vector<Model> models_;
  std::size_t most_bytes_, kept_ = 0, next_ = 0;
  bool closed_ = false;
};

}  // namespace astrarium::front
