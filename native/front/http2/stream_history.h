// What became of the streams of an HTTP/2 connection that are no more: whether a frame on one is late or wrong.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>

namespace astrarium::front {

class StreamHistory {
 public:
  enum Past {
    kIdle,     // never used, and still can be; even numbers are ours, and we use none
    kSkipped,  // never used, and cannot be any more
    kLeft,     // we ended it, and the client may not have known when it sent more
    kClosed,   // the client has ended it
  };

  void opened(std::uint32_t id) {
    if (id > last_ + 2) keep(skipped_, Gap{last_ + 1, id - 1}, kGaps);
    last_ = id;
  }
  void left(std::uint32_t id) { keep(left_, id, kMostLeft); }

  Past of(std::uint32_t id) const {
    if (is_idle(id)) return kIdle;
    const auto holds = [id](const Gap& gap) { return gap.first <= id && id <= gap.second; };
    if (std::any_of(skipped_.begin(), skipped_.end(), holds)) return kSkipped;
    return std::find(left_.begin(), left_.end(), id) != left_.end() ? kLeft : kClosed;
  }

  bool is_idle(std::uint32_t id) const { return id % 2 == 0 || id > last_; }
  std::uint32_t last() const { return last_; }

 private:
  using Gap = std::pair<std::uint32_t, std::uint32_t>;
  // Only the latest are remembered: no client of ours skips numbers, and few calls are ended before they have arrived.
  static constexpr std::size_t kGaps = 16, kMostLeft = 4096;

  template <class Queue, class Item>
  static void keep(Queue& queue, Item item, std::size_t most) {
    queue.push_back(item);
    if (queue.size() > most) queue.pop_front();
  }

  std::uint32_t last_ = 0;
  std::deque<Gap> skipped_;
  std::deque<std::uint32_t> left_;
};

}  // namespace astrarium::front
