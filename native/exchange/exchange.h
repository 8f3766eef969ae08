// What the threads of a front share: the memory of tensors, who is let in, and the ways that tickets go.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "common/ring.h"
#include "common/sequence_lock.h"
#include "exchange/admission.h"
#include "exchange/arena.h"
#include "exchange/regions.h"
#include "exchange/tally.h"
#include "exchange/text_queue.h"
#include "exchange/ticket.h"

namespace astrarium::front {

// One that makes tickets: a network thread, or Python.
struct Origin {
  Origin(std::size_t most, std::size_t models) : sent(most), back(most), tallies(models) {}

  Ring<Ticket*> sent;  // to the scheduler, whose bell is the exchange's
  Ring<Ticket*> back;  // ended: the scheduler pushes here and rings
  Bell bell;           // of the origin

  // What a network thread counts.
  std::vector<ModelTally> tallies;  // by model
  AnsweredCalls last_calls;

  Count in_text;  // accepted calls whose texts wait for tokens, or have them and have not been sent

  SequenceLock counted;   // of the tallies and of the rings' ends here
  SequenceLock admitted;  // of what this origin has let in or out and not counted yet

  // Accepted calls that have not ended.
  std::int64_t open() const {
    std::int64_t open_calls = 0;
    for (const ModelTally& tally : tallies) open_calls += tally.open();
    return open_calls;
  }
};

struct Exchange {
  // *memory* is what workers share.
  Exchange(char* memory, std::size_t size, std::size_t models, std::int64_t most_open, std::size_t origins)
      : memory(memory),
        size(size),
        models(models),
        arena(size),
        admission(models, most_open),
        texts(models, size / kTextShare) {
    if (most_open < 1) throw std::invalid_argument("open calls: at least 1 may be");
    const std::size_t most = static_cast<std::size_t>(most_open) + kRacing;
    for (std::size_t i = 0; i < origins; ++i) this->origins.push_back(std::make_unique<Origin>(most, models));
  }

  // By an origin's thread that has sent tickets: the scheduler is to take them. Where it sleeps and no batch is under
  // way, whose end could wake it, its turn is taken here and now: that is sooner than it could wake up.
  void hand_in() {
    if (at_rest.load(std::memory_order_relaxed) && bell.is_needed()) {
      const std::unique_lock lock(turn, std::try_to_lock);
      if (lock && take_turn && take_turn()) return;
    }
    bell.ring();
  }

  // Racing threads may each let in one call more than may be open.
  static constexpr std::size_t kRacing = 64;

  // Of the bytes for tensors: so many may wait as texts, beside them.
  static constexpr std::size_t kTextShare = 4;

  char* memory;
  std::size_t size, models;
  Arena arena;
  Admission admission;
  TextQueue texts;
  Regions regions;                               // of clients
  Bell bell;                                     // of the scheduler
  std::vector<std::unique_ptr<Origin>> origins;  // a ticket's `origin` is its place here
  std::mutex turn;                               // for whoever lets the scheduler do something
  std::function<bool()> take_turn;               // by that; false: not now; nothing where no scheduler runs
  std::atomic<bool> at_rest = false;             // whether no batch is under way
  std::atomic<std::size_t> arriving = 0;         // bytes of blocks whose tensors are on their way
  std::atomic<Time> response = 0;                // the setup's network.response, for Admission::answered
  std::vector<std::shared_ptr<void>> kept;       // those whose tickets may still be on their way
};

}  // namespace astrarium::front
