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
#include "front/calls/client_ticket.h"
#include "front/calls/incoming.h"
#include "front/calls/refusals.h"
#include "front/calls/text_calls.h"
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
        texts_(exchange, origin_, std::move(post_tokens)) {}

  // A call is read into this one before anybody knows whether it is taken.
  ClientTicket& spare() {
    if (unused_.empty()) {
      all_tickets_.push_back(std::make_unique<ClientTicket>());
      all_tickets_.back()->number = static_cast<std::int64_t>(all_tickets_.size()) - 1;
      unused_.push_back(all_tickets_.back().get());
    }
    return *unused_.back();
  }

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
    if (model.tokens || !is_light(ticket.call) || ticket.call.has_regions() || !fill(ticket, model, received).empty())
      return Beginning::kWaits;
    const Time now = monotonic_ns(), objective = ticket.deadline - received;
    const Verdict verdict = is_behind(ticket, objective, now)
                                ? Verdict::kBehind
                                : exchange_.admission.judge(model.index, ticket.cost, objective, received, now);
    if (verdict == Verdict::kClosed) return Beginning::kWaits;
    if (verdict != Verdict::kTaken) return refuse(ticket, model, verdict, now), Beginning::kRefused;
    if (!take_arriving(ticket)) return Beginning::kWaits;
    incoming.places = places_of(ticket, area);
    note_inputs(ticket, model);
    incoming.ticket = &ticket;
    unused_.pop_back();
    return Beginning::kBegun;
  }

  // All tensors of a call that was begun are here; it is taken or refused. *is_served*: its model is still what it was.
  Taking finish(Caller& caller, Incoming& incoming, bool is_served) {
    ClientTicket& ticket = end_arrival(incoming);
    const auto& model = static_cast<const ServedModel&>(*ticket.call.model);
    if (!model.limited.empty() && !takes_values(ticket, model, exchange_.memory + ticket.block)) {
      recycle(ticket);
      return turn_away(model, RefusedFor::kBadRequest);
    }
    const Time now = monotonic_ns(), objective = ticket.objective();
    const SequenceWrite let_in(origin_.admitted);
    const Verdict verdict = is_served
                                ? exchange_.admission.admit(model.index, ticket.cost, objective, ticket.received, now)
                                : Verdict::kClosed;
    if (verdict == Verdict::kTaken) return hand_over(ticket, caller) ? Taking{true} : refuse_as_full(ticket, model);
    recycle(ticket);
    if (verdict != Verdict::kClosed) return refuse(ticket, model, verdict, now);
    is_served ? refusals_.closed(model.name) : refusals_.changed(model.name);
    origin_.tallies[static_cast<std::size_t>(model.index)]
        .refused[static_cast<std::size_t>(RefusedFor::kUnavailable)]
        .add(1);
    return {false};
  }

  // Refuses a call that was begun and can no longer be in time; false where it can.
  bool expire(Incoming& incoming, Time now) {
    if (incoming.is_refused() || now <= incoming.ticket->deadline) return false;
    ClientTicket& ticket = end_arrival(incoming);
    recycle(ticket);
    const auto& model = static_cast<const ServedModel&>(*ticket.call.model);
    refuse(ticket, model, Verdict::kTooLate, now);
    return true;
  }

  // Its client has gone before all of it was here.
  void abandon(Incoming& incoming) {
    if (!incoming.is_refused()) recycle(end_arrival(incoming));
  }
  // Writes the outputs of an answered call that belong in regions there. False where one does not take it, and
  // `refusal` says why. Who has gone gets nothing: the memory may be something else by now.
  bool deliver(const ClientTicket& ticket, const protocol::ReplyLayout& layout) {
    if (ticket.caller == nullptr) return true;
    for (std::size_t at = 0; at < ticket.to.size(); ++at)
      if (ticket.to[at].region != nullptr && !deliver(ticket, layout, ticket.call.outputs[at], ticket.to[at]))
        return false;
    return true;
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
    if (!find_regions(ticket, model)) return {false, kRegion};
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
    if (!place(ticket, model)) return refuse_for_memory(ticket, model);
    if (!is_all_here && !read_regions(ticket)) return leave_out(ticket, model), Taking{false, kRegion};
    if (!is_all_here && !model.limited.empty() && !takes_values(ticket, model, exchange_.memory + ticket.block))
      return leave_out(ticket, model), turn_away(model, RefusedFor::kBadRequest);
    ticket.connection = connection;
    unused_.pop_back();
    return hand_over(ticket, caller) ? Taking{true} : refuse_as_full(ticket, model);
  }

  // Takes hold of the regions that a call names; false where somebody else has to explain what is wrong with them.
  bool find_regions(ClientTicket& ticket, const ServedModel& model) const {
    if (!ticket.call.has_regions()) return true;
    for (const protocol::Input& tensor : ticket.call.inputs)
      if (!take_hold(ticket, tensor.place, ticket.from)) return false;
    for (const protocol::Wanted& wanted : ticket.call.outputs) {
      const std::size_t rows = static_cast<std::size_t>(ticket.rows);
      if (!take_hold(ticket, wanted.place, ticket.to)) return false;
      if (wanted.place.is_given() && !ticket.to.back().region->is_writable()) return false;
      if (wanted.place.is_given() && model.reply_bytes && wanted.place.size < rows * model.layout.sizes[wanted.output])
        return false;
    }
    drop_if_none(ticket.from), drop_if_none(ticket.to);
    return true;
  }
  bool take_hold(const ClientTicket& ticket, const protocol::RegionPlace& place, std::vector<RegionPart>& parts) const {
    parts.emplace_back();
    if (!place.is_given()) return true;
    parts.back() = exchange_.regions.part(ticket.owner, place.region, place.at, place.size);
    return parts.back().region != nullptr;
  }
  static void drop_if_none(std::vector<RegionPart>& parts) {
    if (std::all_of(parts.begin(), parts.end(), [](const RegionPart& part) { return part.region == nullptr; }))
      parts.clear();
  }

  // Copies the inputs that lie in regions to where workers find them; false where a region has become shorter.
  bool read_regions(const ClientTicket& ticket) const {
    char* to = exchange_.memory + ticket.block;
    for (std::size_t at = 0; at < ticket.from.size(); ++at) {
      const RegionPart& part = ticket.from[at];
      if (part.region != nullptr && !part.region->read(part.at, to, part.size)) return false;
      to += protocol::aligned(ticket.input_bytes(at, exchange_.size));
    }
    return true;
  }

  // A call that was let in and placed, and is not handed over.
  void leave_out(ClientTicket& ticket, const ServedModel& model) {
    exchange_.arena.give_back(ticket.block);
    exchange_.admission.ended(model.index, ticket.cost.weight, ticket.objective());
  }

  bool deliver(const ClientTicket& ticket, const protocol::ReplyLayout& layout, const protocol::Wanted& wanted,
               const RegionPart& part) {
    const std::string_view output = ticket.call.model->outputs[wanted.output].name;
    const std::size_t size = layout.size_of_all(ticket.call.rows, wanted.output);
    if (size > part.size) return refusals_.too_small(output, wanted.place.region, part.size, size), false;
    std::size_t at = part.at;
    for (std::int64_t row = 0; row < ticket.call.rows; ++row) {
      const std::string_view data = layout.data(row, wanted.output);
      if (!part.region->write(at, data)) return refusals_.shortened(output, wanted.place.region), false;
      at += data.size();
    }
    return true;
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

  // Copies the tensors to where workers find them; false where there is no memory for them now.
  bool place(ClientTicket& ticket, const ServedModel& model) {
    if (!take_block(ticket)) return false;
    ticket.call.place(exchange_.memory + ticket.block);
    return note_inputs(ticket, model), true;
  }

  bool take_block(ClientTicket& ticket) {
    const std::size_t inputs = ticket.call.block_bytes();
    const std::int64_t block =
        exchange_.arena.take(inputs + static_cast<std::size_t>(ticket.rows) * ticket.reply_bytes);
    if (block < 0) return false;
    ticket.block = static_cast<std::size_t>(block);
    ticket.replies = ticket.block + inputs;
    return true;
  }

  void note_inputs(ClientTicket& ticket, const ServedModel& model) {
    if (!model.fixed_inputs)
      for (const protocol::Input& tensor : ticket.call.inputs) ticket.inputs.push_back({tensor.shape, tensor.bytes()});
    for (protocol::Input& tensor : ticket.call.inputs) tensor.data = {};  // it lay in the request
  }

  // What a call holds while it arrives is counted by its block; one with a long id or much JSON is kept as it comes.
  static bool is_light(const protocol::Call& call) {
    constexpr std::size_t kMost = 4096;
    std::size_t size = call.id.size();
    for (const protocol::Input& tensor : call.inputs) size += tensor.own_bytes.size();
    return size <= kMost;
  }

  // Clients may send slowly: only so much of the memory waits for them.
  bool take_arriving(ClientTicket& ticket) {
    const std::size_t bytes = block_size(ticket, ticket.call.block_bytes());
    if (exchange_.arriving.fetch_add(bytes, std::memory_order_relaxed) + bytes <= exchange_.arena.size() / 4 &&
        take_block(ticket))
      return true;
    exchange_.arriving.fetch_sub(bytes, std::memory_order_relaxed);
    return false;
  }
  ClientTicket& end_arrival(Incoming& incoming) {
    ClientTicket& ticket = *std::exchange(incoming.ticket, nullptr);
    exchange_.arriving.fetch_sub(block_size(ticket, ticket.replies - ticket.block), std::memory_order_relaxed);
    return ticket;
  }
  static std::size_t block_size(const ClientTicket& ticket, std::size_t inputs) {
    return Arena::rounded(inputs + static_cast<std::size_t>(ticket.rows) * ticket.reply_bytes);
  }
  // Where tensors that were read as if they lay in *area* go, in their order there; those that came as JSON go there
  // now.
  std::vector<Incoming::Place> places_of(const ClientTicket& ticket, std::string_view area) const {
    std::vector<std::pair<const char*, Incoming::Place>> by_source;
    char* to = exchange_.memory + ticket.block;
    for (const protocol::Input& tensor : ticket.call.inputs) {
      const bool follows = tensor.data.data() >= area.data() && tensor.data.data() < area.data() + area.size();
      if (!follows) std::copy(tensor.data.begin(), tensor.data.end(), to);
      else if (!tensor.data.empty()) by_source.push_back({tensor.data.data(), {to, tensor.data.size()}});
      to = protocol::Call::clear_gap(to, tensor.data.size());
    }
    std::sort(by_source.begin(), by_source.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Incoming::Place> places;
    for (const auto& [_, place] : by_source) places.push_back(place);
    return places;
  }

  // False where the scheduler's ring is full, and nothing has happened.
  bool hand_over(ClientTicket& ticket, Caller& caller) {
    ticket.caller = &caller;
    ticket.admitted = monotonic_ns();
    const SequenceWrite counting(origin_.counted);
    if (!origin_.sent.push(&ticket)) return false;
    origin_.tallies[static_cast<std::size_t>(ticket.model)].accepted.add(1);
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
    recycle(ticket);
    return refuse(ticket, model, Verdict::kFull, 0);
  }

  Taking refuse(const ClientTicket& ticket, const ServedModel& model, Verdict verdict, Time now) {
    const Time objective = ticket.objective();
    if (verdict == Verdict::kTooLate) refusals_.too_late(model.name, objective, ticket.cost, now - ticket.received);
    else if (verdict == Verdict::kAway) refusals_.away(model.name, exchange_.admission.back_at() - monotonic_ns());
    else if (verdict == Verdict::kFull) refusals_.full(exchange_.admission.open());
    else if (verdict == Verdict::kBehind) refusals_.behind(waited_, objective);
    else if (verdict == Verdict::kTexts) refusals_.texts(model.name, exchange_.texts.open(model.index));
    else refusals_.backlog(model.name, exchange_.admission.open(model.index), objective);
    if (verdict == Verdict::kAway) return turn_away(model, RefusedFor::kUnavailable);
    return turn_away(model, verdict == Verdict::kTooLate ? RefusedFor::kDeadline : RefusedFor::kOverloaded);
  }

  Taking refuse_for_memory(const ClientTicket& ticket, const ServedModel& model) {
    exchange_.admission.ended(model.index, ticket.cost.weight, ticket.objective());
    refusals_.no_memory();
    return turn_away(model, RefusedFor::kOverloaded);
  }

  Taking turn_away(const ServedModel& model, RefusedFor kind) {
    ModelTally& tally = origin_.tallies[static_cast<std::size_t>(model.index)];
    tally.refused[static_cast<std::size_t>(kind)].add(1);
    const bool is_ours = kind == RefusedFor::kDeadline || kind == RefusedFor::kOverloaded;
    if (is_ours && model.was_promised(spare().call)) tally.declined.add(1);
    return {false};
  }

  // ---- texts

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
    unused_.pop_back();
    if (texts.size() == 1) texts_.put(ticket, std::move(texts.front()), now);
    else put_parts(ticket, std::move(texts), now);
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

  // Each text of a call is as long as it is, and a ticket of its own.
  void put_parts(ClientTicket& whole, std::vector<std::vector<std::string>> texts, Time now) {
    whole.block = ClientTicket::kNoBlock;
    whole.outcome = Outcome::kInTime;  // until a part says otherwise
    whole.open_parts = texts.size();
    for (std::vector<std::string>& text : texts) {
      ClientTicket& part = spare();
      unused_.pop_back();
      part_of(whole, part);
      whole.parts.push_back(&part);
      texts_.put(part, std::move(text), now);
    }
  }
  void part_of(ClientTicket& whole, ClientTicket& part) {
    part.clear();
    part.call.clear();
    part.call.model = whole.call.model;
    part.call.timeout_us = whole.call.timeout_us;
    part.call.patience = whole.call.patience;
    part.whole = &whole;
    part.rows = 1;
    part.origin = whole.origin, part.model = whole.model, part.application = whole.application;
    part.received = whole.received, part.deadline = whole.deadline, part.cost = whole.cost;
  }

  // A part has ended, and is in the books; the client has its answer with the last one.
  template <class Answer, class Then, class Leave>
  void answer_part(ClientTicket& part, Answer& answer, Then& then, Leave leave) {
    const auto& model = static_cast<const ServedModel&>(*part.call.model);
    ClientTicket& whole = *part.whole;
    const protocol::ReplyLayout* layout = answer_of(part, model);
    end(part, model, layout != nullptr, monotonic_ns(), leave);
    if (layout == nullptr) whole.hear_end_of(part);
    if (--whole.open_parts > 0) return;
    if (whole.outcome == Outcome::kInTime) whole.take_stages_of(part);
    if (whole.caller != nullptr) whole.caller->ticket = nullptr;
    answer(whole, answer_of_parts(whole, model));
    for (ClientTicket* one : whole.parts) recycle(*one);
    const std::uint64_t connection = whole.connection;
    Caller* const caller = std::exchange(whole.caller, nullptr);
    recycle(whole);
    then(connection, caller);
  }

  const protocol::ReplyLayout* answer_of_parts(ClientTicket& whole, const ServedModel& model) {
    if (whole.outcome != Outcome::kInTime) return refusals_.ended(model.name, whole), nullptr;
    protocol::ReplyLayout joined{};
    for (ClientTicket* part : whole.parts) {
      const protocol::ReplyLayout& row = *answer_of(*part, model);
      if (!joined.blocks.empty() && row.shapes != joined.shapes) return refusals_.unequal_texts(model.name), nullptr;
      joined.shapes = row.shapes;
      joined.blocks.push_back(row.first);
      joined.sizes.insert(joined.sizes.end(), row.sizes.begin(), row.sizes.end());
    }
    return layout_ = std::move(joined), &layout_;
  }

  // ---- answers

  // *leave* takes it from where it was.
  template <class Answer, class Then, class Leave>
  void answer_one(ClientTicket& ticket, Answer& answer, Then& then, Leave leave) {
    if (ticket.whole != nullptr) return answer_part(ticket, answer, then, leave);
    const auto& model = static_cast<const ServedModel&>(*ticket.call.model);
    const protocol::ReplyLayout* layout = answer_of(ticket, model);
    if (ticket.caller != nullptr) ticket.caller->ticket = nullptr;
    const Time now = answer(ticket, layout);
    end(ticket, model, layout != nullptr, now, leave);
    recycle(ticket);
    then(ticket.connection, std::exchange(ticket.caller, nullptr));
  }
  void recycle(ClientTicket& ticket) {
    if (ticket.block != ClientTicket::kNoBlock) exchange_.arena.give_back(ticket.block);
    ticket.trim();
    unused_.push_back(&ticket);
  }

  // Where the answer lies; nothing where there is none, or where the rows' answers do not belong together or cannot be
  // where they should be: then there is a refusal.
  const protocol::ReplyLayout* answer_of(const ClientTicket& ticket, const ServedModel& model) {
    if (ticket.outcome != Outcome::kInTime) return refusals_.ended(model.name, ticket), nullptr;
    for (const auto& row : ticket.reply_shapes)
      if (!alike(row, ticket.reply_shapes.front())) return refusals_.unequal(model.name), nullptr;
    const bool varies = !ticket.reply_shapes.empty() && !ticket.reply_shapes.front().empty();
    protocol::ReplyLayout& layout = !varies && model.reply_bytes ? model.layout : layout_of(ticket);
    layout.first = exchange_.memory + ticket.replies;
    layout.bytes = ticket.reply_bytes;
    return fit(model, layout, ticket.rows) ? &layout : (refusals_.not_there(), nullptr);
  }

  // From the shapes that the worker reported.
  protocol::ReplyLayout& layout_of(const ClientTicket& ticket) {
    const std::size_t count = ticket.reply_shapes.empty() ? 0 : ticket.reply_shapes.front().size();
    layout_.shapes.resize(count);
    layout_.sizes.clear();
    layout_.blocks.clear();
    for (std::size_t at = 0; at < count; ++at) layout_.shapes[at] = ticket.reply_shapes.front()[at].shape;
    for (const auto& row : ticket.reply_shapes)
      for (const Written& tensor : row) layout_.sizes.push_back(tensor.bytes);
    return layout_;
  }

  static bool alike(const std::vector<Written>& row, const std::vector<Written>& other) {
    return std::equal(row.begin(), row.end(), other.begin(), other.end(),
                      [](const Written& a, const Written& b) { return a.shape == b.shape; });
  }

  // It leaves where it was, the books and the admission.
  template <class Leave>
  void end(const ClientTicket& ticket, const ServedModel& model, bool has_answer, Time now, Leave leave) {
    const SequenceWrite let_out(origin_.admitted);
    {
      const SequenceWrite counting(origin_.counted);
      note(ticket, model, has_answer, now);
      leave();
    }
    exchange_.admission.ended(ticket.model, ticket.cost.weight, ticket.objective());
  }

  void note(const ClientTicket& ticket, const ServedModel& model, bool has_answer, Time now) {
    ModelTally& tally = origin_.tallies[static_cast<std::size_t>(ticket.model)];
    Outcome outcome = ticket.outcome;
    Cause cause = ticket.cause;
    if (outcome == Outcome::kInTime && !has_answer) {  // as its client knows
      outcome = Outcome::kFailed;
      cause = Cause::kModelError;
    }
    if (outcome == Outcome::kInTime && now > ticket.deadline) outcome = Outcome::kLate;
    tally.call_ended(outcome, cause, now - ticket.received);
    if (outcome == Outcome::kDropped && ticket.cause != Cause::kUnserved && model.was_promised(ticket.call))
      tally.declined.add(1);
    if (!has_answer) return;
    tally.answered(ticket.received, ticket.started, now, ticket.rows);
    exchange_.admission.answered(ticket.model,
                                 now - ticket.planned_end - exchange_.response.load(std::memory_order_relaxed));
    origin_.last_calls.add({ticket.model, ticket.gpu, ticket.batch, ticket.batch_size, outcome == Outcome::kInTime,
                            ticket.received, ticket.admitted, ticket.dispatched, ticket.started, ticket.finished, now});
  }

  // As clients in closed loops may take .8 of an objective for all of it, and the way back takes a little.
  static constexpr double kOnPath = 0.85;
  static constexpr Time kSoon = 200'000;                 // the scheduler hears of a call, while others are read
  static constexpr std::string_view kRegion = "region";  // why a call goes the long way

  Exchange& exchange_;
  Origin& origin_;
  int number_;
  const Time& came_;
  TextCalls texts_;
  Time waited_ = 0;  // the call that was judged last, and would wait
  Refusals refusals_;
  protocol::ReplyLayout layout_{nullptr, 0, {}, {}};
  std::vector<std::unique_ptr<ClientTicket>> all_tickets_;
  std::vector<ClientTicket*> unused_;
  std::vector<ClientTicket*> without_tokens_;  // they have ended before the scheduler had them
  bool has_sent_ = false;                      // since the scheduler was told
  Time sent_since_ = 0;                        // and for how long
  std::size_t handed_in_ = 0;                  // how many it was told of, in all
};

}  // namespace astrarium::front
