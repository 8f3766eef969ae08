// What clients of calls without an answer get instead. Python says the same of calls that it has read, in
// astrarium.server.control.calls.refusals; exchange/refusal_words.h has the words for both where a call is not let in.
#pragma once

#include <string>
#include <string_view>

#include "common/rounded_duration.h"
#include "exchange/outcome_names.h"
#include "exchange/refusal_words.h"
#include "protocol/answer.h"

namespace astrarium::front {

// Bytes as Python shows them in an error.
inline std::string shown_bytes(std::string_view bytes) {
  constexpr std::size_t kLongest = 80;
  constexpr char kHex[] = "0123456789abcdef";
  const bool has_single = bytes.find('\'') != std::string_view::npos,
             has_double = bytes.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string text = {'b', quote};
  for (const char c : bytes) {
    const auto code = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      text += '\\';
      text += c;
    } else if (c == '\t' || c == '\n' || c == '\r') {
      text += '\\';
      text += c == '\t' ? 't' : c == '\n' ? 'n' : 'r';
    } else if (code >= ' ' && code < 127) text += c;
    else {
      text += "\\x";
      text += kHex[code >> 4];
      text += kHex[code & 15];
    }
  }
  text += quote;
  return text.size() <= kLongest ? text : text.substr(0, kLongest - 3) + "...";
}

// The kind of a refusal, as in astrarium.server.contract.
struct RefusalKind {
  std::string_view http;  // status and its phrase
  int grpc;               // status
};

struct Refusal {
  RefusalKind kind{};
  std::string reason;
  bool retry = false;  // in a second
};

// Each one is there until the next.
class Refusals {
 public:
  const Refusal& last() const { return last_; }

  // The admission has refused a call.
  void not_let_in(Verdict verdict, const JudgedCall& call, const Admission& admission) {
    text_.clear();
    append_words(text_, verdict, call, admission);
    const RefusedFor kind = refused_for(verdict);
    if (kind == RefusedFor::kDeadline) write(kDeadline);
    else write(kind == RefusedFor::kOverloaded ? kOverloaded : kUnavailable, true);
  }
  // Of one call, while nothing else is open.
  void too_many_texts(std::string_view model, std::int64_t texts, Time objective) {
    begin("model ", model) += " cannot answer " + std::to_string(texts) + " texts of one call within " +
                              rounded_duration(objective) + ": send fewer at once";
    write(kOverloaded);
  }
  void behind(Time waited, Time objective) {
    text_ = "overloaded: the server has more calls to read than it can; of " + rounded_duration(objective) + ", " +
            rounded_duration(waited) + " are gone before one is decided on";
    write(kOverloaded, true);
  }
  void texts(std::string_view model, std::size_t waiting) {
    text_ = "overloaded: " + std::to_string(waiting) + " texts wait for the tokenizer of model ";
    text_ += model;
    text_ += ", more than it can take in time";
    write(kOverloaded, true);
  }
  void changed(std::string_view model) {
    begin("model ", model) += " was loaded anew or unloaded while the call arrived";
    write(kUnavailable, true);
  }
  void no_memory() {
    text_ = "overloaded: the shared memory for tensors is full";
    write(kOverloaded, true);
  }

  // Of a ticket that came back without an answer.
  void ended(std::string_view model, const Ticket& ticket) {
    if (ticket.cause == Cause::kQuarantined) return quarantined(model, ticket.reason);
    if (ticket.cause == Cause::kInputs && ticket.fault != Fault::kModel) return without_inputs(model, ticket);
    if (ticket.outcome == Outcome::kFailed) return failed(model, ticket.reason);
    if (ticket.cause == Cause::kExpired) {
      begin("model ", model) += ": the deadline can no longer be met";
      write(kDeadline);
    } else if (ticket.cause == Cause::kUnserved) {
      begin("model ", model) += ": the server stopped before it came to this call";
      write(kUnavailable);
    } else {
      begin("overloaded: model ", model) += " dropped the call so that others are in time (";
      text_ += ticket.cause == Cause::kOther ? std::string_view(ticket.reason) : name_of(ticket.cause);
      text_ += ')';
      write(kOverloaded, true);
    }
  }
  void unequal(std::string_view model) {
    begin("model ", model) += ": the rows of one call have answers of unequal shapes";
    write(kFailed);
  }
  // Of a call with several texts.
  void unequal_texts(std::string_view model) {
    unequal(model);
    text_ += "; send one text a call";
  }
  // An element in an answer that was to be JSON.
  void no_text(const protocol::NoText& problem) {
    if (problem.is_broken) return not_there();
    text_ = "output ";
    text_ += problem.output;
    text_ += ", element " + std::to_string(problem.number) +
             ": expected text in UTF-8; ask for this output with the parameter binary_data: true (got ";
    text_ += shown_bytes(problem.element.substr(0, 20)) + ")";
    write(kBad);
  }
  // Of an output that was to be written into a region.
  void too_small(std::string_view output, std::string_view region, std::size_t given, std::size_t needed) {
    begin("output ", output) += ": shared_memory_byte_size: expected at least " + std::to_string(needed) +
                                " bytes of region '" + std::string(region) + "' (got " + std::to_string(given) + ")";
    write(kBad);
  }
  void shortened(std::string_view output, std::string_view region) {
    begin("output ", output) +=
        ": shared_memory_region: expected memory as large as it was registered (got '" + std::string(region) + "')";
    write(kBad);
  }
  // The element at *at* of an input breaks its limits.
  void out_of_range(std::string_view model, const protocol::Spec& input, const protocol::Shape& shape,
                    std::string_view data, std::size_t at) {
    begin("model ", model) += ": input " + input.name + shown_place(shape, at) + ": expected " +
                              input.limits->expected + " (got " + protocol::shown_element(data, input.type->kind, at) +
                              ")";
    write(kBad);
  }
  void not_there() {
    text_ = "the worker's answer is not what it said it is";
    write(kFailed);
  }

 private:
  static constexpr RefusalKind kDeadline{"504 Gateway Timeout", 4}, kOverloaded{"429 Too Many Requests", 8},
      kUnavailable{"503 Service Unavailable", 14}, kFailed{"500 Internal Server Error", 13}, kBad{"400 Bad Request", 3},
      kTooLarge{"413 Request Entity Too Large", 8}, kUnprocessable{"422 Unprocessable Entity", 3};

  static std::string shown_place(const protocol::Shape& shape, std::size_t at) {
    std::string text = "]";
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      const auto length = static_cast<std::size_t>(shape[axis]);
      text.insert(0, (axis ? ", " : "[") + std::to_string(at % length));
      at /= length;
    }
    return text;
  }

  void failed(std::string_view model, std::string_view reason) {
    begin("model ", model) += " failed: ";
    text_ += reason;
    write(kFailed);
  }

  // Not the model's fault.
  void without_inputs(std::string_view model, const Ticket& ticket) {
    const bool is_full = ticket.fault == Fault::kNoPlace, has_changed = ticket.fault == Fault::kChanged;
    (begin(is_full ? "overloaded: model " : "model ", model) += ": ") += ticket.reason;
    if (is_full || has_changed) write(is_full ? kOverloaded : kUnavailable, true);
    else write(ticket.fault == Fault::kTooLong ? kTooLarge : kBad);
  }

  void quarantined(std::string_view model, std::string_view reason) {
    begin("model ", model) += " does not take this input: ";
    text_ += reason;
    write(kUnprocessable);
  }

  std::string& begin(std::string_view start, std::string_view model) {
    text_ = start;
    return text_ += model;
  }

  void write(const RefusalKind& kind, bool retry = false) {
    last_.kind = kind;
    last_.retry = retry;
  }

  Refusal last_;
  std::string& text_ = last_.reason;
};

}  // namespace astrarium::front
