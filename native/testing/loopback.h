// A loopback stands in for the scheduler and the workers: it ends each ticket that it gets, answered with its own
// inputs or as a test says. For tests, and to measure the network alone.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "exchange/exchange.h"
#include "front/http1/connection.h"
#include "front/served_model.h"

namespace astrarium::front {

struct Ending {
  Outcome outcome = Outcome::kInTime;
  Cause cause = Cause::kNone;
  std::string reason = {};
};

class Loopback {
 public:
  explicit Loopback(Exchange& exchange) : exchange_(exchange) { exchange_.admission.close(false); }
  ~Loopback() { stop(); }
  Loopback(const Loopback&) = delete;
  Loopback& operator=(const Loopback&) = delete;

  // Ends tickets in a thread of its own, until it is stopped.
  void start() {
    thread_ = std::thread([this] { run(); });
  }
  void stop() {
    if (!thread_.joinable()) return;
    stopped_.store(true);
    exchange_.bell.ring_aloud();
    thread_.join();
  }
  void end_with(Ending ending) {
    const std::lock_guard lock(mutex_);
    ending_ = std::move(ending);
  }

  // Without the thread: all tickets that have come. The exchange's bell is rung when there are more.
  std::vector<ClientTicket*> pop() {
    std::vector<ClientTicket*> tickets;
    exchange_.bell.wakes();
    exchange_.bell.sleeps();
    for (const auto& origin : exchange_.origins)
      for (Ticket* ticket = nullptr; origin->sent.pop(ticket);) tickets.push_back(static_cast<ClientTicket*>(ticket));
    return tickets;
  }

  void end(ClientTicket& ticket, const Ending& ending) {
    Origin& origin = give_back(ticket, ending);
    origin.bell.ring();
  }

  // Outputs are the inputs, as far as they fit; all rows alike.
  void echo(ClientTicket& ticket) const {
    const auto& model = static_cast<const ServedModel&>(*ticket.call.model);
    std::size_t from = ticket.block, to = ticket.replies;
    for (std::size_t at = 0; at < model.outputs.size() && at < model.inputs.size(); ++at) {
      const std::size_t bytes = ticket.input_bytes(at, exchange_.size);
      const std::size_t row = bytes / static_cast<std::size_t>(ticket.rows);
      if (to - ticket.replies + row > ticket.reply_bytes) return;
      for (int i = 0; i < ticket.rows; ++i)
        std::memcpy(exchange_.memory + to + static_cast<std::size_t>(i) * ticket.reply_bytes,
                    exchange_.memory + from + static_cast<std::size_t>(i) * row, row);
      from += protocol::aligned(bytes);
      to += protocol::aligned(row);
    }
    if (!model.reply_bytes) describe(ticket, model);
  }

 private:
  void run() {
    while (!stopped_.load(std::memory_order_relaxed)) {
      if (end_all()) continue;
      exchange_.bell.sleeps();
      pollfd waits{exchange_.bell.fd(), POLLIN, 0};
      if (all_empty() && !stopped_.load()) ::poll(&waits, 1, -1);
      exchange_.bell.wakes(waits.revents != 0);
    }
  }

  bool end_all() {
    const std::lock_guard lock(mutex_);
    bool any = false;
    for (const auto& origin : exchange_.origins) {
      bool some = false;
      for (Ticket* sent = nullptr; origin->sent.pop(sent); some = true) {
        auto& ticket = static_cast<ClientTicket&>(*sent);
        if (ending_.outcome == Outcome::kInTime) echo(ticket);
        give_back(ticket, ending_);
      }
      if (some) origin->bell.ring();
      any |= some;
    }
    return any;
  }

  bool all_empty() const {
    for (const auto& origin : exchange_.origins)
      if (!origin->sent.empty()) return false;
    return true;
  }

  Origin& give_back(ClientTicket& ticket, const Ending& ending) {
    ticket.outcome = ending.outcome;
    ticket.cause = ending.cause;
    ticket.reason = ending.reason;
    ticket.gpu = 0;
    ticket.batch = ++batches_;
    ticket.batch_size = ticket.rows;
    ticket.dispatched = ticket.started = ticket.finished = ticket.planned_end = monotonic_ns();
    Origin& origin = *exchange_.origins[static_cast<std::size_t>(ticket.origin)];
    origin.back.push(&ticket);  // as many fit as may be open
    return origin;
  }

  void describe(ClientTicket& ticket, const ServedModel& model) const {
    ticket.reply_shapes.resize(static_cast<std::size_t>(ticket.rows));
    for (auto& row : ticket.reply_shapes)
      for (std::size_t at = 0; at < model.outputs.size() && at < model.inputs.size(); ++at) {
        protocol::Shape shape = ticket.call.inputs[at].shape;
        shape[0] = 1;
        row.push_back(
            {std::move(shape), ticket.input_bytes(at, exchange_.size) / static_cast<std::size_t>(ticket.rows)});
      }
  }

  Exchange& exchange_;
  std::mutex mutex_;
  Ending ending_;
  std::int64_t batches_ = 0;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

}  // namespace astrarium::front
