// A ticket ends when all its rows have, and when no worker may write for it any more: a batch that was cancelled keeps
// its tickets until its worker has said that it is done.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "exchange/admission.h"
#include "exchange/row.h"
#include "messages/news.h"
#include "scheduler/batch.h"

namespace astrarium::front {

class TicketEnds {
 public:
  // Tickets that have ended go to *ended*; *admission* hears of them, too.
  TicketEnds(Admission& admission, std::vector<Ticket*>& ended) : admission_(admission), ended_(ended) {}

  // The worst that became of a row is what becomes of its ticket.
  void end(const Row& row, Outcome outcome, Cause cause, std::string_view reason) {
    Ticket& ticket = *row.ticket;
    if (outcome > ticket.outcome) {
      ticket.outcome = outcome;
      ticket.cause = cause;
      ticket.reason = reason;
    }
    if (--ticket.open_rows > 0) return;
    tell_limit(ticket);
    if (ticket.held == 0) ended_.push_back(&ticket);
  }

  // Each row of a batch has its answer, and each ticket learns when the batch of it ran.
  void answer(int gpu, const Batch& batch, const protocol::BatchDone& done) {
    const bool has_all_shapes = done.shapes && done.shapes->size() == batch.rows.size();
    for (std::size_t member = 0; member < batch.rows.size(); ++member) {
      const Row& row = batch.rows[member];
      if (has_all_shapes) shape(row, (*done.shapes)[member]);
      note_batch(*row.ticket, gpu, batch, done);
      if (done.shapes && !has_all_shapes)
        end(row, Outcome::kFailed, Cause::kModelError, "the worker's answer is not what it said it is");
      else end(row, Outcome::kInTime, Cause::kNone, "");
    }
  }

  // A batch that is cancelled keeps its tickets until `let_go`.
  static void hold(const Batch& batch) {
    for (const Row& row : batch.rows) ++row.ticket->held;
  }

  // No worker writes for a cancelled batch any more.
  void let_go(const Batch& batch) {
    for (const Row& row : batch.rows)
      if (--row.ticket->held == 0 && row.ticket->open_rows == 0) ended_.push_back(row.ticket);
  }

 private:
  static void shape(const Row& row, std::vector<Written> shapes) {
    Ticket& ticket = *row.ticket;
    ticket.reply_shapes.resize(static_cast<std::size_t>(ticket.rows));
    ticket.reply_shapes[static_cast<std::size_t>(row.index)] = std::move(shapes);
  }

  static void note_batch(Ticket& ticket, int gpu, const Batch& batch, const protocol::BatchDone& done) {
    ticket.gpu = gpu;
    ticket.batch_size = static_cast<int>(batch.rows.size());
    ticket.batch = batch.tag;
    ticket.dispatched = batch.dispatched;
    ticket.planned_end = batch.planned_end;
    ticket.started = done.started;
    ticket.finished = done.finished;
  }

  // What became of a call says how many may be open.
  void tell_limit(const Ticket& ticket) {
    OpenCallLimit& limit = admission_.limit(ticket.model);
    if (ticket.outcome == Outcome::kInTime && ticket.finished <= ticket.deadline)
      limit.answered(ticket.finished, ticket.cost.weight);
    else if (ticket.outcome == Outcome::kInTime || ticket.outcome == Outcome::kDropped) limit.lost();
  }

  Admission& admission_;
  std::vector<Ticket*>& ended_;
};

}  // namespace astrarium::front
