// The tickets of calls that Python has read, and what the scheduler tells Python: as tuples.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <deque>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "exchange/outcome_names.h"
#include "scheduler/scheduler.h"

namespace astrarium::front {

namespace nb = nanobind;

inline std::vector<Written> read_shapes(nb::handle shapes) {
  std::vector<Written> tensors;
  if (shapes.is_none()) return tensors;
  for (nb::handle pair : shapes)
    tensors.push_back({nb::cast<protocol::Shape>(pair[0]), nb::cast<std::size_t>(pair[1])});
  return tensors;
}

inline nb::list shapes_of_row(const std::vector<Written>& row) {
  nb::list shapes;
  for (const Written& tensor : row) {
    nb::list shape;
    for (const std::int64_t dimension : tensor.shape) shape.append(dimension);
    shapes.append(nb::make_tuple(nb::tuple(shape), tensor.bytes));
  }
  return shapes;
}

inline nb::object shapes_of_rows(const std::vector<std::vector<Written>>& rows) {
  if (rows.empty()) return nb::none();
  nb::list shapes;
  for (const auto& row : rows) shapes.append(shapes_of_row(row));
  return shapes;
}

// The tickets of calls that Python has read: the last origin.
class PythonTickets {
 public:
  Ticket* make() {
    if (spare_.empty()) return &all_.emplace_back();
    Ticket* ticket = spare_.back();
    spare_.pop_back();
    ticket->clear();
    return ticket;
  }
  void free(Ticket* ticket) { spare_.push_back(ticket); }

 private:
  std::deque<Ticket> all_;  // which stay where they are
  std::vector<Ticket*> spare_;
};

inline void fill(Ticket& ticket, std::int64_t number, int model, int rows, int application, std::pair<Time, Time> times,
                 std::tuple<std::size_t, std::size_t, std::size_t> blocks, nb::handle shapes, int length) {
  ticket.length = length;
  ticket.number = number;
  ticket.model = model;
  ticket.rows = rows;
  ticket.application = application;
  std::tie(ticket.received, ticket.deadline) = times;
  std::tie(ticket.block, ticket.replies, ticket.reply_bytes) = blocks;
  ticket.inputs = read_shapes(shapes);
}

// (number, outcome, cause, reason, shapes of the answers by row, retried, its batch).
inline nb::tuple as_tuple(const Ticket& ticket) {
  const auto batch = nb::make_tuple(ticket.batch, ticket.gpu, ticket.batch_size, ticket.dispatched, ticket.planned_end,
                                    ticket.started, ticket.finished);
  const bool in_own_words = ticket.cause == Cause::kOther;  // the policy's own words
  const std::string cause = in_own_words ? ticket.reason : std::string(name_of(ticket.cause));
  return nb::make_tuple(ticket.number, static_cast<int>(ticket.outcome), cause, ticket.reason,
                        shapes_of_rows(ticket.reply_shapes), ticket.retried, batch);
}

// (model, calls, certain).
inline nb::tuple as_tuple(const Blame& blame) { return nb::make_tuple(blame.model, blame.calls, blame.certain); }

// [(model, digest, since, until, reason)].
inline nb::list as_list(const std::vector<QuarantinedInput>& inputs) {
  nb::list entries;
  for (const QuarantinedInput& entry : inputs)
    entries.append(nb::make_tuple(entry.model, entry.digest, entry.since, entry.until, entry.reason));
  return entries;
}

// What BatchesDone in astrarium.server.control.accounts.model_accounts holds, and how long the last batches kept their
// GPUs.
inline nb::tuple as_tuple(const ModelBatches& batches) {
  nb::list execution, last;
  nb::dict computing;
  for (const std::int64_t count : batches.execution) execution.append(count);
  for (std::size_t size = 0; size < batches.computing.size(); ++size)
    if (const auto& [count, time] = batches.computing[size]; count)
      computing[nb::int_(size)] = nb::make_tuple(count, time);
  for (const KeptGpu& kept : batches.last)
    last.append(nb::make_tuple(kept.finished, kept.size, kept.kept, kept.bucket));
  return nb::make_tuple(
      nb::make_tuple(execution, batches.gathering, batches.writing, computing, batches.length, batches.computed), last);
}

// ([(model, its batches, the last of them)], [(GPU, when a second began, how long it was busy in it)]).
inline nb::tuple as_tuple(const BatchBooks& books) {
  nb::list models, busy;
  for (std::size_t model = 0; model < books.models.size(); ++model)
    if (!books.models[model].last.empty()) models.append(nb::make_tuple(model) + as_tuple(books.models[model]));
  for (std::size_t gpu = 0; gpu < books.busy.size(); ++gpu)
    for (const auto& [began, time] : books.busy[gpu]) busy.append(nb::make_tuple(gpu, began, time));
  return nb::make_tuple(models, busy);
}

}  // namespace astrarium::front
