// What became of batches, added up for Python, which looks at it now and then: books, profiles that drift, busy GPUs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "exchange/tally.h"
#include "scheduler/batch_lengths.h"

namespace astrarium::front {

// A batch that ended well.
struct BatchRecord {
  std::int64_t tag;
  int gpu, model, size;
  Time dispatched, planned_end, received, started, computing, computed, finished;
  BatchLengths lengths;

  // How long it had its GPU, and for how long no other could have it: KeptGpu in astrarium.server.control.calls.ticket.
  Time busy() const { return std::max<Time>(0, computed - std::max(started, dispatched)); }
  Time kept_gpu() const { return (computing == started ? computed : finished) - started; }
};

// How long one batch kept its GPU.
struct KeptGpu {
  Time finished;
  int size;
  Time kept;
  int bucket;  // of its lengths; -1: of several
};

template <class T>
T& grown(std::vector<T>& values, int index) {
  if (std::ssize(values) <= index) values.resize(static_cast<std::size_t>(index) + 1);
  return values[static_cast<std::size_t>(index)];
}

// A model's batches since Python last looked.
struct ModelBatches {
  static constexpr std::size_t kLast = 200;  // as many as a drift watch looks at (FEWEST)

  std::array<std::int64_t, TimeHistogram::kBounds.size() + 1> execution{};  // counts by upper bound
  Time gathering = 0, writing = 0;
  std::int64_t length = 0, computed = 0;  // of all rows, and with what they were padded to; of models with lengths
  std::vector<std::pair<std::int64_t, Time>> computing;  // by size: how many, and how long in all
  std::deque<KeptGpu> last;

  void add(const BatchRecord& record) {
    ++execution[TimeHistogram::place(record.finished - record.started)];
    gathering += record.computing - record.started;
    writing += record.finished - record.computed;
    length += record.lengths.length;
    computed += record.lengths.computed;
    auto& [count, time] = grown(computing, record.size);
    ++count;
    time += record.computed - record.computing;
    last.push_back({record.finished, record.size, record.kept_gpu(), record.lengths.bucket});
    if (last.size() > kLast) last.pop_front();
  }
};

class BatchBooks {
 public:
  using Second = std::pair<Time, Time>;  // when it began, and how long a GPU was busy in it

  void add(const BatchRecord& record) {
    grown(models, record.model).add(record);
    add_busy(record.gpu, record.finished, record.busy());
  }
  void add_busy(int gpu, Time until, Time time) { busy_in(grown(busy, gpu), until / kSecond * kSecond) += time; }

  std::vector<ModelBatches> models;       // by model
  std::vector<std::vector<Second>> busy;  // by GPU

 private:
  static constexpr Time kSecond = 1000 * kMillisecond;

  // It is mostly the last one: batches of a GPU end one after another.
  static Time& busy_in(std::vector<Second>& seconds, Time began) {
    const auto match =
        std::find_if(seconds.rbegin(), seconds.rend(), [&](const Second& second) { return second.first == began; });
    if (match != seconds.rend()) return match->second;
    return seconds.emplace_back(began, 0).second;
  }
};

}  // namespace astrarium::front
