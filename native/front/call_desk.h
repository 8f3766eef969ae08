// The call desk of a network thread: calls that were read become tickets, which are handed to the scheduler and come
// back with an outcome. It does not know what the thread speaks with its clients.
#pragma once

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "exchange/exchange.h"
#include "front/incoming.h"
#include "front/refusals.h"
#include "front/served.h"
#include "protocol/answer.h"
#include "protocol/json_call.h"
#include "protocol/trim.h"

namespace astrarium::front {

struct Pending;

// Who waits for a call's answer.
struct Asker {
  Pending* pending = nullptr;  // the call
};

// A call on its way, and whose it is.
struct Pending : Ticket {
  express::Call call;
  Asker* asker = nullptr;  // nothing: its client has gone
  std::uint64_t connection = 0;

  // Of an input, once its bytes lie where workers find them.
  std::size_t input_bytes(std::size_t at, std::size_t limit) const {
    return inputs.empty() ? call.model->inputs[at].bytes(call.inputs[at].shape, limit).value_or(0) : inputs[at].bytes;
  }

  // What one large call needed is not kept for small ones.
  void trim() {
    constexpr std::size_t kKept = 1 << 16;
    for (express::Part& part : call.inputs)
      if (part.made.capacity() > kKept) express::trim(part.made);
    if (call.id.capacity() > kKept) express::trim(call.id);
  }
};

class CallDesk {
 public:
  CallDesk(Exchange& exchange, int number)
      : exchange_(exchange), origin_(*exchange.origins.at(static_cast<std::size_t>(number))), number_(number) {}

  // A call is read into this one before anybody knows whether it is taken.
  Pending& spare() {
    if (unused_.empty()) {
      made_.push_back(std::make_unique<Pending>());
      made_.back()->number = static_cast<std::int64_t>(made_.size()) - 1;
      unused_.push_back(made_.back().get());
    }
    return *unused_.back();
  }

  // What becomes of the call in `spare`: it is taken, or refused, or goes the long way because of *why*.
  struct Taking {
    bool taken;
    std::string_view why = {};  // empty: it was refused, and `refusal` says so
  };
  Taking take(Asker& asker, Time received, std::uint64_t connection = 0) {
    Pending& pending = spare();
    const auto& model = static_cast<const ServedModel&>(*pending.call.model);
    const std::string_view why = fill(pending, model, received);
    if (!why.empty()) return {false, why};
    if (!model.limited.empty() && !takes_values(pending, model, nullptr))
      return turn_away(model, RefusedFor::kBadRequest);
    const Time now = monotonic_ns(), objective = pending.deadline - pending.received;
    const Together let_in(origin_.admitted);
    const Verdict verdict = exchange_.admission.admit(model.index, objective, pending.received, now);
    if (verdict == Verdict::kClosed) return {false, "closed"};
    if (verdict != Verdict::kTaken) return refuse(model, verdict, objective, now - pending.received);
    if (!place(pending, model)) return refuse_for_memory(model);
    pending.connection = connection;
    unused_.pop_back();
    return hand_over(pending, asker) ? Taking{true} : refuse_as_full(pending, model);
  }

  // The call in `spare` was read as if its tensors lay in *room*, but they are on their way.
  enum class Beginning {
    kWaits,    // until all of it is here
    kRefused,  // nobody needs its tensors, and `refusal` says so
    kBegun,    // they have their places
  };
  Beginning begin(Time received, std::string_view room, Incoming& incoming) {
    Pending& pending = spare();
    const auto& model = static_cast<const ServedModel&>(*pending.call.model);
    if (!is_light(pending.call) || !fill(pending, model, received).empty()) return Beginning::kWaits;
    const Time now = monotonic_ns(), objective = pending.deadline - received;
    const Verdict verdict = exchange_.admission.judge(model.index, objective, received, now);
    if (verdict == Verdict::kClosed) return Beginning::kWaits;
    if (verdict != Verdict::kTaken) return refuse(model, verdict, objective, now - received), Beginning::kRefused;
    if (!take_arriving(pending)) return Beginning::kWaits;
    incoming.places = places_of(pending, room);
    placed(pending, model);
    incoming.pending = &pending;
    unused_.pop_back();
    return Beginning::kBegun;
  }

  // All tensors of a call that was begun are here; it is taken or refused. *is_served*: its model is still what it was.
  Taking finish(Asker& asker, Incoming& incoming, bool is_served) {
    Pending& pending = arrived(incoming);
    const auto& model = static_cast<const ServedModel&>(*pending.call.model);
    if (!model.limited.empty() && !takes_values(pending, model, exchange_.memory + pending.block)) {
      put_back(pending);
      return turn_away(model, RefusedFor::kBadRequest);
    }
    const Time now = monotonic_ns(), objective = pending.deadline - pending.received;
    const Together let_in(origin_.admitted);
    const Verdict verdict =
        is_served ? exchange_.admission.admit(model.index, objective, pending.received, now) : Verdict::kClosed;
    if (verdict == Verdict::kTaken) return hand_over(pending, asker) ? Taking{true} : refuse_as_full(pending, model);
    put_back(pending);
    if (verdict != Verdict::kClosed) return refuse(model, verdict, objective, now - pending.received);
    is_served ? refusals_.closed(model.name) : refusals_.changed(model.name);
    origin_.tallies[static_cast<std::size_t>(model.index)]
        .refused[static_cast<std::size_t>(RefusedFor::kUnavailable)]
        .add(1);
    return {false};
  }

  // Refuses a call that was begun and can no longer be in time; false where it can.
  bool expire(Incoming& incoming, Time now) {
    if (incoming.is_refused() || now <= incoming.pending->deadline) return false;
    Pending& pending = arrived(incoming);
    put_back(pending);
    const auto& model = static_cast<const ServedModel&>(*pending.call.model);
    refuse(model, Verdict::kTooLate, pending.deadline - pending.received, now - pending.received);
    return true;
  }

  // Its client has gone before all of it was here.
  void abandon(Incoming& incoming) {
    if (!incoming.is_refused()) put_back(arrived(incoming));
  }
  const Refusal& refusal() const { return refusals_.last(); }
  // In the place of an answer with an element that is no text.
  const Refusal& no_text(const express::NoText& found) { return refusals_.no_text(found), refusals_.last(); }

  // Lets the scheduler take all calls that were taken here.
  void send() {
    if (std::exchange(has_sent_, false)) exchange_.hand_in();
  }

  // For each ticket that has come back `answer(pending, rooms)`, which returns when the client had it, as far as one
  // can tell; without rooms there is a refusal. Then, when all is in the books, `then(connection, asker)`.
  template <class Answer, class Then>
  void answer_all(Answer answer, Then then) {
    for (Ticket* ticket = nullptr; origin_.back.peek(ticket);) {
      Pending& pending = static_cast<Pending&>(*ticket);
      const auto& model = static_cast<const ServedModel&>(*pending.call.model);
      const express::Rooms* rooms = answer_of(pending, model);
      if (pending.asker != nullptr) pending.asker->pending = nullptr;
      const Time now = answer(pending, rooms);
      end(pending, model, rooms != nullptr, now);
      exchange_.arena.give_back(pending.block);
      pending.trim();
      unused_.push_back(&pending);
      then(pending.connection, std::exchange(pending.asker, nullptr));
    }
  }

  // The client of a call has gone; the call ends all the same.
  static void leave(Asker& asker) {
    if (asker.pending != nullptr) std::exchange(asker.pending, nullptr)->asker = nullptr;
  }

 private:
  // Makes a ticket of a call; where that is not possible, somebody else has to explain why.
  std::string_view fill(Pending& pending, const ServedModel& model, Time received) {
    pending.clear();
    pending.origin = number_;
    pending.model = model.index;
    pending.rows = static_cast<int>(pending.call.rows);
    const Time objective = model.objective_of(pending.call);
    if (!objective) return "priority";
    pending.received = received;
    pending.deadline = received + objective;
    pending.application = model.application_of(pending.call);
    if (pending.application < 0) return "application";
    const std::size_t inputs = pending.call.block_bytes(), rows = static_cast<std::size_t>(pending.rows),
                      most = exchange_.arena.size();
    pending.room = model.room(inputs, rows);
    return pending.room > (most - std::min(inputs, most)) / rows ? "memory" : "";
  }

  // Whether all numbers are within the limits of their inputs, else there is a refusal. Tensors lie one after the other
  // from *placed* on, or still in the request.
  bool takes_values(const Pending& pending, const ServedModel& model, const char* placed) {
    for (std::size_t at = 0, next = 0; next < model.limited.size(); ++at) {
      const express::Part& part = pending.call.inputs[at];
      std::string_view data = part.data;
      if (placed != nullptr) {
        data = {placed, pending.input_bytes(at, exchange_.size)};
        placed += express::aligned(data.size());
      }
      if (model.limited[next] != at) continue;
      ++next;
      const express::Spec& input = model.inputs[at];
      const std::size_t found = express::first_outside(data, input.type->kind, *input.limits);
      if (found == express::kAllInside) continue;
      refusals_.out_of_range(model.name, input, part.shape, data, found);
      return false;
    }
    return true;
  }

  // Copies the tensors to where workers find them; false where there is no room now.
  bool place(Pending& pending, const ServedModel& model) {
    if (!take_block(pending)) return false;
    pending.call.place(exchange_.memory + pending.block);
    return placed(pending, model), true;
  }

  bool take_block(Pending& pending) {
    const std::size_t inputs = pending.call.block_bytes();
    const std::int64_t block = exchange_.arena.take(inputs + static_cast<std::size_t>(pending.rows) * pending.room);
    if (block < 0) return false;
    pending.block = static_cast<std::size_t>(block);
    pending.replies = pending.block + inputs;
    return true;
  }

  void placed(Pending& pending, const ServedModel& model) {
    if (!model.fixed_inputs)
      for (const express::Part& part : pending.call.inputs) pending.inputs.push_back({part.shape, part.data.size()});
    for (express::Part& part : pending.call.inputs) part.data = {};  // it lay in the request
  }

  // What a call holds while it arrives is counted by its block; one with a long id or much JSON is kept as it comes.
  static bool is_light(const express::Call& call) {
    constexpr std::size_t kMost = 4096;
    std::size_t size = call.id.size();
    for (const express::Part& part : call.inputs) size += part.made.size();
    return size <= kMost;
  }

  // Clients may send slowly: only so much of the memory waits for them.
  bool take_arriving(Pending& pending) {
    const std::size_t bytes = block_size(pending, pending.call.block_bytes());
    if (exchange_.arriving.fetch_add(bytes, std::memory_order_relaxed) + bytes <= exchange_.arena.size() / 4 &&
        take_block(pending))
      return true;
    exchange_.arriving.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  Pending& arrived(Incoming& incoming) {
    Pending& pending = *std::exchange(incoming.pending, nullptr);
    exchange_.arriving.fetch_sub(block_size(pending, pending.replies - pending.block), std::memory_order_relaxed);
    return pending;
  }
  static std::size_t block_size(const Pending& pending, std::size_t inputs) {
    return Arena::rounded(inputs + static_cast<std::size_t>(pending.rows) * pending.room);
  }
  void put_back(Pending& pending) {
    exchange_.arena.give_back(pending.block);
    pending.trim();
    unused_.push_back(&pending);
  }

  // Where tensors that were read as if they lay in *room* go, in their order there; those that came as JSON go there
  // now.
  std::vector<Incoming::Place> places_of(const Pending& pending, std::string_view room) const {
    std::vector<std::pair<const char*, Incoming::Place>> found;
    char* to = exchange_.memory + pending.block;
    for (const express::Part& part : pending.call.inputs) {
      const bool follows = part.data.data() >= room.data() && part.data.data() < room.data() + room.size();
      if (!follows) std::copy(part.data.begin(), part.data.end(), to);
      else if (!part.data.empty()) found.push_back({part.data.data(), {to, part.data.size()}});
      to = express::Call::clear_gap(to, part.data.size());
    }
    std::sort(found.begin(), found.end(), [](const auto& one, const auto& other) { return one.first < other.first; });
    std::vector<Incoming::Place> places;
    for (const auto& [_, place] : found) places.push_back(place);
    return places;
  }

  // False where the scheduler's ring is full, and nothing has happened.
  bool hand_over(Pending& pending, Asker& asker) {
    pending.asker = &asker;
    pending.admitted = monotonic_ns();
    const Together counting(origin_.counted);
    if (!origin_.sent.push(&pending)) return false;
    origin_.tallies[static_cast<std::size_t>(pending.model)].accepted.add(1);
    asker.pending = &pending;
    return has_sent_ = true;
  }

  Taking refuse_as_full(Pending& pending, const ServedModel& model) {
    pending.asker = nullptr;
    put_back(pending);
    exchange_.admission.ended(model.index);
    return refuse(model, Verdict::kFull, 0, 0);
  }

  Taking refuse(const ServedModel& model, Verdict verdict, Time objective, Time passed) {
    if (verdict == Verdict::kTooLate)
      refusals_.too_late(model.name, objective, exchange_.admission.needed(model.index), passed);
    else if (verdict == Verdict::kAway) refusals_.away(model.name, exchange_.admission.back_at() - monotonic_ns());
    else if (verdict == Verdict::kFull) refusals_.full(exchange_.admission.open());
    else refusals_.backlog(model.name, exchange_.admission.open(model.index), objective);
    if (verdict == Verdict::kAway) return turn_away(model, RefusedFor::kUnavailable);
    return turn_away(model, verdict == Verdict::kTooLate ? RefusedFor::kDeadline : RefusedFor::kOverloaded);
  }

  Taking refuse_for_memory(const ServedModel& model) {
    exchange_.admission.ended(model.index);
    refusals_.no_memory();
    return turn_away(model, RefusedFor::kOverloaded);
  }

  Taking turn_away(const ServedModel& model, RefusedFor kind) {
    ModelTally& tally = origin_.tallies[static_cast<std::size_t>(model.index)];
    tally.refused[static_cast<std::size_t>(kind)].add(1);
    const bool is_ours = kind != RefusedFor::kBadRequest;
    if (is_ours && model.was_promised(spare().call)) tally.declined.add(1);
    return {false};
  }

  // ---- answers

  // Where the answer lies; nothing where there is none, or where the rows' answers do not belong together or cannot be
  // where they should be: then there is a refusal.
  const express::Rooms* answer_of(const Pending& pending, const ServedModel& model) {
    if (pending.outcome != Outcome::kInTime) return refusals_.ended(model.name, pending), nullptr;
    for (const auto& row : pending.reply_shapes)
      if (!alike(row, pending.reply_shapes.front())) return refusals_.unequal(model.name), nullptr;
    const bool varies = !pending.reply_shapes.empty() && !pending.reply_shapes.front().empty();
    express::Rooms& rooms = !varies && model.reply_bytes ? model.rooms : rooms_of(pending);
    rooms.first = exchange_.memory + pending.replies;
    rooms.bytes = pending.room;
    return fit(model, rooms, pending.rows) ? &rooms : (refusals_.not_there(), nullptr);
  }

  // By what the worker said.
  express::Rooms& rooms_of(const Pending& pending) {
    const std::size_t count = pending.reply_shapes.empty() ? 0 : pending.reply_shapes.front().size();
    rooms_.shapes.resize(count);
    rooms_.sizes.clear();
    for (std::size_t at = 0; at < count; ++at) rooms_.shapes[at] = pending.reply_shapes.front()[at].shape;
    for (const auto& row : pending.reply_shapes)
      for (const Written& one : row) rooms_.sizes.push_back(one.bytes);
    return rooms_;
  }

  static bool alike(const std::vector<Written>& one, const std::vector<Written>& other) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                      [](const Written& a, const Written& b) { return a.shape == b.shape; });
  }

  // It leaves the ring, the books and the admission.
  void end(const Pending& pending, const ServedModel& model, bool has_answer, Time now) {
    const Together let_out(origin_.admitted);
    {
      const Together counting(origin_.counted);
      note(pending, model, has_answer, now);
      origin_.back.drop();
    }
    exchange_.admission.ended(pending.model);
  }

  void note(const Pending& pending, const ServedModel& model, bool has_answer, Time now) {
    ModelTally& tally = origin_.tallies[static_cast<std::size_t>(pending.model)];
    Outcome outcome = pending.outcome;
    Cause cause = pending.cause;
    if (outcome == Outcome::kInTime && !has_answer) {  // as its client was told
      outcome = Outcome::kFailed;
      cause = Cause::kModelError;
    }
    if (outcome == Outcome::kInTime && now > pending.deadline) outcome = Outcome::kLate;
    tally.call_ended(outcome, cause, now - pending.received);
    if (outcome == Outcome::kDropped && pending.cause != Cause::kUnserved && model.was_promised(pending.call))
      tally.declined.add(1);
    if (!has_answer) return;
    tally.answered(pending.received, pending.started, now, pending.rows);
    exchange_.admission.answered(pending.model,
                                 now - pending.planned_end - exchange_.response.load(std::memory_order_relaxed));
    origin_.last_calls.add({pending.model, pending.gpu, pending.batch, pending.batch_size, outcome == Outcome::kInTime,
                            pending.received, pending.admitted, pending.dispatched, pending.started, pending.finished,
                            now});
  }

  Exchange& exchange_;
  Origin& origin_;
  int number_;
  Refusals refusals_;
  express::Rooms rooms_{nullptr, 0, {}, {}};
  std::vector<std::unique_ptr<Pending>> made_;
  std::vector<Pending*> unused_;
  bool has_sent_ = false;
};

}  // namespace astrarium::front
