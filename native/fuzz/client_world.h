// The world of a network thread that is fuzzed: one client after the other sends bytes in any pieces, calls go both
// ways, and clients leave. Whatever comes, nothing may be held in the end.
#pragma once

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "testing/loopback.h"

#include "must.h"

namespace {

using namespace astrarium;
using namespace astrarium::front;

constexpr Time kHour = Time{3600} * 1'000'000'000;

protocol::Model model(int index, std::string name, protocol::Shape item, std::string_view datatype = "FP32") {
  const protocol::Datatype* type = protocol::datatype(datatype);
  return {index, std::move(name), "1", {{"IN", type, item}}, {{"OUT", type, item}}, 4, kHour, {{2, kHour}}};
}

// Its calls have texts, which become tokens.
ServedModel told_model(int index) {
  protocol::Model told = model(index, "told", {1}, "BYTES");
  told.outputs[0].type = protocol::datatype("FP32");
  return {std::move(told), {}, std::nullopt, TokenInputs{0, {{"tokens", protocol::datatype("INT16"), {-1}}}}};
}

// A token for each byte; of some texts there are none.
Tokens tokens_of(const Text& text) {
  const std::string& bytes = text.parts.front();
  if (bytes.size() % 5 == 4) return Tokens::refused(static_cast<Fault>(bytes[0] % 3), "no tokens");
  Tokens tokens;
  tokens.inputs = {{1}};
  tokens.inputs[0].insert(tokens.inputs[0].end(), bytes.begin(), bytes.end());
  return tokens;
}
void make_tokens(TextQueue& queue, TextBatch batch) {
  std::vector<Tokens> all;
  for (const Text& text : batch.texts) all.push_back(tokens_of(text));
  queue.give(std::move(batch), std::move(all));
}

// A thread that takes its turns on demand, with a loopback behind it. *Shared* is what threads of its kind share.
template <class Thread, class Shared>
class ClientWorld {
 public:
  // *more*: what *Shared* wants beside the exchange and limits.
  template <class... More>
  explicit ClientWorld(int models, More... more)
      : memory_(std::size_t{1} << 20),
        exchange_(memory_.data(), memory_.size(), static_cast<std::size_t>(models) + 1, 8, 1),
        loopback_(exchange_),
        shared_(std::make_shared<Shared>(exchange_, HttpLimits{1024, 65536, 1 << 20, kHour, kHour, 0, 8},
                                         std::move(more)...)),
        thread_(shared_, 0, ::eventfd(0, EFD_NONBLOCK)) {
    thread_.serve(ServedModel(model(0, "fixed", {2}), {"a", "b"}));
    protocol::Model open = model(1, "open", {-1});
    open.inputs[0].limits = protocol::Limits{-1, 0x4b000000, "values from 0 to 8388608"};  // bits of an FP32
    thread_.serve(ServedModel(std::move(open), {}));
    thread_.serve(told_model(models));
    thread_.withhold("absent", "not_ready");
  }
  virtual ~ClientWorld() = default;

  // One client's life: each piece has a byte before it, which says how long it is and what happens after it.
  void live(std::string_view data) {
    int ends[2];
    MUST(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    thread_.adopt(ends[0]);
    while (!data.empty()) {
      const auto what = static_cast<unsigned char>(data[0]);
      const std::size_t size = std::min(data.size() - 1, length(what));
      [[maybe_unused]] const auto sent = ::send(ends[1], data.data() + 1, size, MSG_NOSIGNAL);
      data.remove_prefix(1 + size);
      thread_.turn(false);
      happen(what);
      if (what % 7) drink(ends[1]);
      if (what % 61 == 60) ::shutdown(ends[1], SHUT_WR);
      thread_.turn(false);
    }
    ::close(ends[1]);
    for (int i = 0; i < 4; ++i) end_calls(), thread_.turn(false), hear(), thread_.turn(false);
    MUST(shared_->connections.load() == 0);
    MUST(shared_->held.load() == 0);
    MUST(exchange_.admission.open() == 0);
    MUST(exchange_.arena.used() == 0);
    MUST(exchange_.arriving.load() == 0);
    must_be_empty();
  }

  // A client's bytes, in pieces.
  static std::string pieces(const std::string& whole, std::mt19937& random) {
    std::string input;
    for (std::size_t at = 0; at < whole.size();) {
      const auto what = static_cast<unsigned char>(random() % 256);
      input += static_cast<char>(what);
      input += whole.substr(at, length(what));
      at += length(what);
    }
    return input;
  }

 protected:
  // What goes the long way is answered, as Python might.
  virtual void hear() = 0;
  virtual Ending ending(const ClientTicket&) { return {}; }
  virtual void must_be_empty() {}
  virtual void happen(unsigned char what) {
    if (what % 3) end_calls();
    if (what % 5) hear();
  }

  Thread& thread() { return thread_; }
  Shared& shared() { return *shared_; }
  auto passed() { return shared_->long_way.take().first; }

 private:
  static std::size_t length(unsigned char what) { return std::size_t{what} * what / 8; }

  void end_calls() {
    constexpr std::size_t kAtOnce = 2;                                       // bytes
    const Time now = monotonic_ns() + (++turns_ % 11 == 0 ? 2 * kHour : 0);  // by when some are too late
    for (auto batch = exchange_.texts.try_take(kAtOnce, now); batch; batch = exchange_.texts.try_take(kAtOnce, now))
      make_tokens(exchange_.texts, std::move(*batch));
    for (ClientTicket* call : loopback_.pop()) {
      loopback_.echo(*call);
      loopback_.end(*call, ending(*call));
    }
  }

  static void drink(int fd) {
    char buffer[65536];
    while (::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT) > 0) {
    }
  }

  std::vector<char> memory_;
  Exchange exchange_;
  Loopback loopback_;
  std::shared_ptr<Shared> shared_;
  Thread thread_;
  std::size_t turns_ = 0;
};

// Bytes are lost, doubled, or become what *another* gives; the first *kept* ones seldom.
template <class Another>
std::string with_accidents(std::string whole, std::mt19937& random, const Another& another, std::size_t kept = 0) {
  for (auto left = random() % 4; left > 0 && !whole.empty(); --left) {
    const std::size_t skipped = random() % 16 ? kept : 0,
                      at = std::min(whole.size() - 1, skipped + random() % whole.size());
    switch (random() % 3) {
      case 0: whole[at] = another(); break;
      case 1: whole.erase(at, random() % 9); break;
      default: whole.insert(at, whole.substr(at, random() % 9));
    }
  }
  return whole;
}

}  // namespace
