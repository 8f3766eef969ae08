// The tickets of a network thread. Calls that were read become tickets, which are handed to the scheduler and come
// back with an outcome. It does not know what the thread speaks with its clients.
#pragma once

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "exchange/exchange.h"
#include "front/calls/call_books.h"
#include "front/calls/client_ticket.h"
#include "front/calls/incoming.h"
#include "front/calls/refusals.h"
#include "front/calls/region_tensors.h"
#include "front/calls/reply_layouts.h"
#include "front/calls/text_calls.h"
#include "front/calls/text_tickets.h"
#include "front/calls/ticket_memory.h"
#include "front/calls/ticket_pool.h"
#include "front/served_model.h"
#include "protocol/answer.h"

namespace astrarium::front {

class CallTickets {
 public:
  // *came*: when the thread's clients sent what it has read last; *post_tokens*: lets it call `take_tokens`, soon, and
  // then `answer_all`.
  CallTickets(Exchange& exchange, int number, const Time& came, TextCalls::Post post_tokens)
      : exchange_(exchange),
        origin_(*exchange.origins.at(static_cast<std::size_t>(number))),
        number_(number),
        came_(came),
        pool_(exchange.arena),
        books_(exchange, origin_),
        memory_(exchange),
        regions_(exchange, refusals_),
        layouts_(exchange.memory, refusals_),
        texts_(exchange, origin_, std::move(post_tokens)),
        text_tickets_(pool_, texts_) {}

  // A call is read into this one before anybody knows whether it is taken.
  ClientTicket& spare() { return pool_.spare(); }

  // What becomes of the call in `spare`: it is taken, or refused, or goes the long way because of *why*.
  struct Taking {
    bool taken;
    std::string_view why = {};  // empty: it was refused, and `refusal` says so
  };
  Taking take(Caller& caller, Time received, std::uint64_t connection = 0) {
    ClientTicket& ticket = spare();
    const auto& model = static_cast<const ServedModel&>(*ticket.call.model);
    const std::string_view why = fill(ticket, model, received);
    if (!why.empty()) return {false, why};
    if (model.tokens) return take_texts(ticket, model, caller, connection);
    const Taking taking = take_tensors(ticket, model, caller, connection);
    if (!taking.taken) ticket.let_go();
    else if (ticket.admitted - sent_since_ > kSoon) send();
    return taking;
  }
  // The call in `spare` was read as if its tensors lay in *area*, but they are on their way.
  enum class Beginning {
    kWaits,    // until all of it is here
    kRefused,  // nobody needs its tensors, and `refusal` says so
    kBegun,    // they have their places
  };
  Beginning begin(Time received, std::string_view area, Incoming& incoming) {
    ClientTicket& ticket = spare();
    const auto& model = static_cast<const ServedModel&>(*ticket.call.model);
    if (model.tokens || !TicketMemory::is_light(ticket.call) || ticket.call.has_regions() ||
        !fill(ticket, model, received).empty())
      return Beginning::kWaits;
    const Time now = monotonic_ns(), objective = ticket.deadline - received;
    const Verdict verdict = is_behind(ticket, objective, now)
                                ? Verdict::kBehind
                                : exchange_.admission.judge(model.index, ticket.cost, objective, received, now);
    if (verdict == Verdict::kClosed) return Beginning::kWaits;
    if (verdict != Verdict::kTaken) return refuse(ticket, model, verdict, now), Beginning::kRefused;
    if (!memory_.begin_arrival(ticket, model, area, incoming)) return Beginning::kWaits;
    pool_.take();
    return Beginning::kBegun;
  }

  // All tensors of a call that was begun are here; it is taken or refused. *is_served*: its model is still what it was.
  Taking finish(Caller& caller, Incoming& incoming, bool is_served) {
    ClientTicket& ticket = memory_.end_arrival(incoming);
    const auto& model = static_cast<const ServedModel&>(*ticket.call.model);
    if (!model.limited.empty() && !takes_values(ticket, model, exchange_.memory + ticket.block)) {
      pool_.give_back(ticket);
      return turn_away(model, RefusedFor::kBadRequest);
    }
    const Time now = monotonic_ns(), objective = ticket.objective();
    const SequenceWrite let_in(origin_.admitted);
    const Verdict verdict = is_served
                                ? exchange_.admission.admit(model.index, ticket.cost, objective, ticket.received, now)
                                : Verdict::kClosed;
    if (verdict == Verdict::kTaken) return hand_over(ticket, caller) ? Taking{true} : refuse_as_full(ticket, model);
    pool_.give_back(ticket);
    if (is_served) return refuse(ticket, model, verdict, now);
    refusals_.changed(model.name);
    return turn_away(model, RefusedFor::kUnavailable);
  }

  // Refuses a call that was begun and can no longer be in time; false where it can.
  bool expire(Incoming& incoming, Time now) {
    if (incoming.is_refused() || now <= incoming.ticket->deadline) return false;
    ClientTicket& ticket = memory_.end_arrival(incoming);
    pool_.give_back(ticket);
    const auto& model = static_cast<const ServedModel&>(*ticket.call.model);
    refuse(ticket, model, Verdict::kTooLate, now);
    return true;
  }

  // Its client has gone before all of it was here.
  void abandon(Incoming& incoming) {
    if (!incoming.is_refused()) pool_.give_back(memory_.end_arrival(incoming));
  }
  // Writes the outputs of an answered call that belong in regions there. False where one does not take it, and
  // `refusal` says why. Who has gone gets nothing: the memory may be something else by now.
  bool deliver(const ClientTicket& ticket, const protocol::ReplyLayout& layout) {
    return ticket.caller == nullptr || regions_.write(ticket, layout);
  }
  const Refusal& refusal() const { return refusals_.last(); }
  // In the place of an answer with an element that is no text.
  const Refusal& no_text(const protocol::NoText& problem) { return refusals_.no_text(problem), refusals_.last(); }

  // Texts have become inputs, or never will. *is_served*: a model takes what was read for it.
  template <class IsServed>
  void take_tokens(const std::vector<TextCalls::Made>& all, IsServed is_served) {
    for (const TextCalls::Made& made : all) {
      ClientTicket& ticket = *static_cast<ClientTicket*>(made.call);
      const auto& model = static_cast<const ServedModel&>(*ticket.call.model);
      if (texts_.fill_in(ticket, made.tokens, is_served(model))) note_sent(ticket.admitted);
      else without_tokens_.push_back(&ticket);
    }
  }

  // Lets the scheduler take all calls that were taken here.
  void send() {
    if (!std::exchange(has_sent_, false)) return;
    handed_in_ = origin_.sent.pushed();
    exchange_.hand_in();
  }

  // For each ticket that has come back `answer(ticket, layout)`, which returns when the client had it, as far as one
  // can tell; without layout there is a refusal. Then, when all is in the books, `then(connection, caller)`.
  template <class Answer, class Then>
  void answer_all(Answer answer, Then then) {
    for (Ticket* ended = nullptr; origin_.back.peek(ended);)
      answer_one(static_cast<ClientTicket&>(*ended), answer, then, [this] { origin_.back.drop(); });
    for (ClientTicket* ticket : std::exchange(without_tokens_, {}))
      answer_one(*ticket, answer, then, [this] { texts_.leave(); });
  }

  // The client of a call has gone; the call ends all the same.
  static void leave(Caller& caller) {
    if (caller.ticket != nullptr) std::exchange(caller.ticket, nullptr)->caller = nullptr;
  }

 private:
  // Makes a ticket of a call; where that is not possible, somebody else has to explain why.
  std::string_view fill(ClientTicket& ticket, const ServedModel& model, Time received) {
    ticket.clear();
    ticket.origin = number_;
    ticket.model = model.index;
    ticket.rows = static_cast<int>(ticket.call.rows);
    const Time objective = model.objective_of(ticket.call);
    if (!objective) return "priority";
    ticket.received = received;
    ticket.deadline = received + objective;
    ticket.application = model.application_of(ticket.call);
    if (ticket.application < 0) return "application";
    ticket.length = model.length_of(ticket.call);
    ticket.cost = exchange_.admission.cost(model.index, ticket.length, model.tokens ? 1 : ticket.rows);
    const std::size_t inputs = ticket.call.block_bytes(), rows = static_cast<std::size_t>(ticket.rows),
                      most = exchange_.arena.size();
    ticket.reply_bytes = model.reply_capacity(inputs, rows);
    return ticket.reply_bytes > (most - std::min(inputs, most)) / rows ? "memory" : "";
  }

  Taking take_tensors(ClientTicket& ticket, const ServedModel& model, Caller& caller, std::uint64_t connection) {
    if (!regions_.take_hold(ticket, model)) return {false, kRegion};
    const bool is_all_here = ticket.from.empty();
    if (is_all_here && !model.limited.empty() && !takes_values(ticket, model, nullptr))
      return turn_away(model, RefusedFor::kBadRequest);
    const Time now = monotonic_ns(), objective = ticket.objective();
    const SequenceWrite let_in(origin_.admitted);
    const Verdict verdict = is_behind(ticket, objective, now)
                                ? Verdict::kBehind
                                : exchange_.admission.admit(model.index, ticket.cost, objective, ticket.received, now);
    if (verdict == Verdict::kClosed) return {false, "closed"};
    if (verdict != Verdict::kTaken) return refuse(ticket, model, verdict, now);
    if (!memory_.place(ticket, model)) return refuse_for_memory(ticket, model);
    if (!is_all_here && !regions_.read(ticket)) return leave_out(ticket, model), Taking{false, kRegion};
    if (!is_all_here && !model.limited.empty() && !takes_values(ticket, model, exchange_.memory + ticket.block))
      return leave_out(ticket, model), turn_away(model, RefusedFor::kBadRequest);
    ticket.connection = connection;
    pool_.take();
    return hand_over(ticket, caller) ? Taking{true} : refuse_as_full(ticket, model);
  }

  // A call that was let in and placed, and is not handed over.
  void leave_out(ClientTicket& ticket, const ServedModel& model) {
    exchange_.arena.give_back(ticket.block);
    exchange_.admission.ended(model.index, ticket.cost.weight, ticket.objective());
  }

  // Whether all numbers are within the limits of their inputs, else there is a refusal. Tensors lie one after the other
  // from *placed* on, or still in the request.
  bool takes_values(const ClientTicket& ticket, const ServedModel& model, const char* placed) {
    for (std::size_t at = 0, next = 0; next < model.limited.size(); ++at) {
      const protocol::Input& tensor = ticket.call.inputs[at];
      std::string_view data = tensor.data;
      if (placed != nullptr) {
        data = {placed, ticket.input_bytes(at, exchange_.size)};
        placed += protocol::aligned(data.size());
      }
      if (model.limited[next] != at) continue;
      ++next;
      const protocol::Spec& input = model.inputs[at];
      const std::size_t outside = protocol::first_outside(data, input.type->kind, *input.limits);
      if (outside == protocol::kAllInside) continue;
      refusals_.out_of_range(model.name, input, tensor.shape, data, outside);
      return false;
    }
    return true;
  }

  // False where the scheduler's ring is full, and nothing has happened.
  bool hand_over(ClientTicket& ticket, Caller& caller) {
    ticket.caller = &caller;
    ticket.admitted = monotonic_ns();
    const SequenceWrite counting(origin_.counted);
    if (!origin_.sent.push(&ticket)) return false;
    books_.accepted(ticket.model);
    caller.ticket = &ticket;
    note_sent(ticket.admitted);
    return true;
  }
  void note_sent(Time now) {
    if (!std::exchange(has_sent_, true)) sent_since_ = now;
  }

  // Whether too much of what the GPU leaves of an objective is gone on the path: while the call waited to be read, and
  // until the scheduler takes it, as long as it has not taken those that it was told of.
  bool is_behind(const ClientTicket& ticket, Time objective, Time now) {
    Ticket* oldest = nullptr;
    waited_ = now - std::max(ticket.received, came_);
    const bool was_told = origin_.sent.popped() < handed_in_;
    if (was_told && origin_.sent.oldest(oldest)) waited_ += std::max<Time>(0, now - oldest->admitted);
    const Time left = objective - ticket.cost.needed;
    return left > 0 && static_cast<double>(waited_) > kOnPath * static_cast<double>(left);
  }

  Taking refuse_as_full(ClientTicket& ticket, const ServedModel& model) {
    ticket.caller = nullptr;
    exchange_.admission.ended(model.index, ticket.cost.weight, ticket.objective());
    pool_.give_back(ticket);
    return refuse(ticket, model, Verdict::kFull, 0);
  }

  Taking refuse(const ClientTicket& ticket, const ServedModel& model, Verdict verdict, Time now) {
    const JudgedCall call{model.index, model.name, ticket.cost, ticket.objective(), ticket.received, now};
    if (verdict == Verdict::kBehind) refusals_.behind(waited_, call.objective);
    else if (verdict == Verdict::kTexts) refusals_.texts(model.name, exchange_.texts.open(model.index));
    else refusals_.not_let_in(verdict, call, exchange_.admission);
    return turn_away(model, refused_for(verdict));
  }

  Taking refuse_for_memory(const ClientTicket& ticket, const ServedModel& model) {
    exchange_.admission.ended(model.index, ticket.cost.weight, ticket.objective());
    refusals_.no_memory();
    return turn_away(model, RefusedFor::kOverloaded);
  }

  Taking turn_away(const ServedModel& model, RefusedFor kind) {
    books_.refused(model.index, kind);
    const bool is_ours = kind == RefusedFor::kDeadline || kind == RefusedFor::kOverloaded;
    if (is_ours && model.was_promised(spare().call)) books_.declined(model.index);
    return {false};
  }

  // The call in `spare` is to wait for its tokens; what it costs is known when it has them.
  Taking take_texts(ClientTicket& ticket, const ServedModel& model, Caller& caller, std::uint64_t connection) {
    if (ticket.call.has_regions()) return {false, kRegion};
    const Time now = monotonic_ns();
    const SequenceWrite let_in(origin_.admitted);
    const Verdict verdict = judge_texts(ticket, now);
    if (verdict != Verdict::kTaken) return refuse_texts(ticket, model, verdict, now);
    exchange_.admission.let_in(ticket.model, ticket.cost, ticket.objective(), ticket.rows);
    std::vector<std::vector<std::string>> texts = texts_of(ticket.call);
    for (protocol::Input& tensor : ticket.call.inputs) {
      tensor.data = {};  // it lay in the request
      protocol::trim(tensor.own_bytes);
    }
    ticket.connection = connection;
    ticket.caller = &caller;
    caller.ticket = &ticket;
    pool_.take();
    text_tickets_.put(ticket, std::move(texts), now);
    return {true};
  }

  // All texts of a call are let in, or none: what would become of the last one, before anything is done for them.
  Verdict judge_texts(const ClientTicket& ticket, Time now) {
    const Time objective = ticket.objective();
    if (is_behind(ticket, objective, now)) return Verdict::kBehind;
    const Verdict verdict =
        exchange_.admission.judge(ticket.model, ticket.cost, objective, ticket.received, now, ticket.rows - 1);
    return verdict == Verdict::kTaken && texts_.is_full(ticket, now) ? Verdict::kTexts : verdict;
  }

  Taking refuse_texts(const ClientTicket& ticket, const ServedModel& model, Verdict verdict, Time now) {
    if (verdict == Verdict::kClosed) return {false, "closed"};
    if (verdict != Verdict::kBacklog || exchange_.admission.open(ticket.model) > 0)
      return refuse(ticket, model, verdict, now);
    refusals_.too_many_texts(model.name, ticket.rows, ticket.objective());
    return turn_away(model, RefusedFor::kBadRequest);  // whatever the model does
  }

  // A part has ended, and is in the books; the client has its answer with the last one.
  template <class Answer, class Then, class Leave>
  void answer_part(ClientTicket& part, Answer& answer, Then& then, Leave leave) {
    const auto& model = static_cast<const ServedModel&>(*part.call.model);
    const protocol::ReplyLayout* layout = layouts_.of(part, model);
    books_.end(part, model, layout != nullptr, monotonic_ns(), leave);
    if (!TextTickets::end_part(part, layout != nullptr)) return;
    ClientTicket& whole = *part.whole;
    if (whole.caller != nullptr) whole.caller->ticket = nullptr;
    answer(whole, layouts_.of_texts(whole, model));
    const std::uint64_t connection = whole.connection;
    Caller* const caller = std::exchange(whole.caller, nullptr);
    text_tickets_.give_back(whole);
    then(connection, caller);
  }

  // *leave* takes it from where it was.
  template <class Answer, class Then, class Leave>
  void answer_one(ClientTicket& ticket, Answer& answer, Then& then, Leave leave) {
    if (ticket.whole != nullptr) return answer_part(ticket, answer, then, leave);
    const auto& model = static_cast<const ServedModel&>(*ticket.call.model);
    const protocol::ReplyLayout* layout = layouts_.of(ticket, model);
    if (ticket.caller != nullptr) ticket.caller->ticket = nullptr;
    const Time now = answer(ticket, layout);
    books_.end(ticket, model, layout != nullptr, now, leave);
    pool_.give_back(ticket);
    then(ticket.connection, std::exchange(ticket.caller, nullptr));
  }

  // As clients in closed loops may take .8 of an objective for all of it, and the way back takes a little.
  static constexpr double kOnPath = 0.85;
  static constexpr Time kSoon = 200'000;                 // the scheduler hears of a call, while others are read
  static constexpr std::string_view kRegion = "region";  // why a call goes the long way

  Exchange& exchange_;
  Origin& origin_;
  int number_;
  const Time& came_;
  Refusals refusals_;
  TicketPool pool_;
  CallBooks books_;
  TicketMemory memory_;
  RegionTensors regions_;
  ReplyLayouts layouts_;
  TextCalls texts_;
  TextTickets text_tickets_;
  Time waited_ = 0;                            // the call that was judged last, and would wait
  std::vector<ClientTicket*> without_tokens_;  // they have ended before the scheduler had them
  bool has_sent_ = false;                      // since the scheduler was told
  Time sent_since_ = 0;                        // and for how long
  std::size_t handed_in_ = 0;                  // how many it was told of, in all
};

}  // namespace astrarium::front
