// Calls whose texts wait to become tokens. With these they get their inputs, and go on to the scheduler.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "exchange/exchange.h"
#include "front/calls/client_ticket.h"
#include "front/served_model.h"

namespace astrarium::front {

class TextCalls : private TextOwner {
 public:
  using Made = TextOwner::Made;
  // By any thread: lets the thread of these calls fill in what was made, soon.
  using Post = std::function<void(std::vector<Made>)>;

  TextCalls(Exchange& exchange, Origin& origin, Post post)
      : exchange_(exchange), origin_(origin), post_(std::move(post)) {}

  // Whether the texts of a call, which lie in its request, would wait too long for their tokens.
  bool is_full(const ClientTicket& ticket, Time now) {
    std::size_t bytes = 0;
    for (const protocol::Input& tensor : ticket.call.inputs) bytes += tensor.data.size();
    return exchange_.texts.is_full(ticket.model, bytes, ticket.deadline - now - ticket.cost.needed, now);
  }

  // Lets a ticket that was let in wait for its tokens.
  void put(ClientTicket& ticket, std::vector<std::string> parts, Time now) {
    const auto& model = static_cast<const ServedModel&>(*ticket.call.model);
    ticket.block = ClientTicket::kNoBlock;
    {
      const SequenceWrite counting(origin_.counted);
      origin_.tallies[static_cast<std::size_t>(model.index)].accepted.add(1);
      origin_.in_text.add(1);
    }
    Text text{std::move(parts), model.tokens->tokenizer, now, ticket.deadline, ticket.cost.needed, this, &ticket};
    if (!exchange_.texts.put(model.index, std::move(text))) post_({{&ticket, Tokens::none(Tokens::End::kUnserved)}});
  }

  // Sends a ticket on with its tokens; false where it has ended, and is to `leave`. *is_served*: its model still takes
  // what the text was read for.
  bool fill_in(ClientTicket& ticket, const Tokens& tokens, bool is_served) {
    if (tokens.end != Tokens::End::kMade) return end_without(ticket, tokens), false;
    if (!is_served) return fail(ticket, Fault::kChanged, "it was loaded anew while the text waited for its tokens");
    const auto& model = static_cast<const ServedModel&>(*ticket.call.model);
    std::vector<Written> shapes = model.tokens->shapes(tokens);
    if (!place(ticket, model, tokens, shapes))
      return fail(ticket, Fault::kNoPlace, "there is no shared memory left for its inputs");
    weigh(ticket, model.tokens->length(shapes));
    if (model.tokens->are_open()) ticket.inputs = std::move(shapes);
    return send(ticket) || fail(ticket, Fault::kNoPlace, "as many calls are open as may be");
  }

  // A ticket that was not sent is no text any more; with its end in the books.
  void leave() { origin_.in_text.add(-1); }

 private:
  void made(std::vector<Made> all) override { post_(std::move(all)); }

  bool place(ClientTicket& ticket, const ServedModel& model, const Tokens& tokens, const std::vector<Written>& shapes) {
    const std::size_t inputs = TokenInputs::block_bytes(shapes);
    ticket.reply_bytes = model.reply_capacity(inputs, 1);
    const std::int64_t block = exchange_.arena.take(inputs + ticket.reply_bytes);
    if (block < 0) return false;
    ticket.block = static_cast<std::size_t>(block);
    ticket.replies = ticket.block + inputs;
    model.tokens->write(tokens, exchange_.memory + ticket.block);
    return true;
  }

  // It was let in before anybody knew how long it is.
  void weigh(ClientTicket& ticket, int length) {
    const CallCost cost = exchange_.admission.cost(ticket.model, length);
    exchange_.admission.reweigh(ticket.model, ticket.cost.weight, cost.weight, ticket.objective());
    ticket.length = length;
    ticket.cost = cost;
  }

  bool send(ClientTicket& ticket) {
    ticket.admitted = monotonic_ns();
    const SequenceWrite counting(origin_.counted);
    if (!origin_.sent.push(&ticket)) return false;
    leave();
    return true;
  }

  static void end_without(ClientTicket& ticket, const Tokens& tokens) {
    const bool is_refused = tokens.end == Tokens::End::kRefused;
    ticket.outcome = is_refused ? Outcome::kFailed : Outcome::kDropped;
    ticket.cause = is_refused                            ? Cause::kInputs
                   : tokens.end == Tokens::End::kExpired ? Cause::kExpired
                                                         : Cause::kUnserved;
    ticket.fault = tokens.fault;
    ticket.reason = tokens.reason;
  }
  static bool fail(ClientTicket& ticket, Fault fault, std::string_view reason) {
    end_without(ticket, Tokens::refused(fault, std::string(reason)));
    return false;
  }

  Exchange& exchange_;
  Origin& origin_;
  Post post_;
};

}  // namespace astrarium::front
