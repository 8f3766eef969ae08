// A fuzzer of a worker's native loop: orders of any bytes, in virtual time. Whatever comes, nothing is read or written
// outside of the memory, every batch that is taken ends, and they end one after the other.
//
// native/fuzz/run.py builds and runs it.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "worker/batch_loop.h"
#include "worker/timed_model.h"

#include "drive.h"
#include "must.h"

namespace {

using namespace astrarium;
using namespace astrarium::worker;

constexpr Time kMillisecond = 1'000'000;

// A connection that carries its input: one order each millisecond; each has its length (16 bits) before it.
class Script : public Environment {
 public:
  explicit Script(std::string_view orders) : rest_(orders) {}

  Time now() override { return now_; }
  std::optional<std::string_view> receive() override {
    if (rest_.size() < 2) return std::nullopt;
    const auto low = static_cast<unsigned char>(rest_[0]), high = static_cast<unsigned char>(rest_[1]);
    packet_ = rest_.substr(2, low | high << 8);
    rest_.remove_prefix(2 + packet_.size());
    now_ += kMillisecond;
    return packet_;
  }
  void say(const std::string& packet) override {
    const auto done = protocol::NewsScan(packet).batch_done();
    MUST(done || packet.find("BatchCancelled") != std::string::npos || packet.find("Pong") != std::string::npos);
    ++replies;
    if (!done) return;
    MUST(done->started >= free_ && done->computed >= done->started);
    free_ = done->computed;
  }
  bool wait(Time until, const std::function<bool()>& on_packet) override {
    while (now_ < until && rest_.size() >= 2)
      if (on_packet()) return false;
    now_ = std::max(now_, until);
    return true;
  }

  void wait_for(Time, const std::function<bool()>&, const std::function<void()>&) override {
    MUST(!"models that take times wait for none");
  }

  long replies = 0;

 private:
  std::string_view rest_;
  std::string packet_;
  Time now_ = 0, free_ = 0;
};

std::shared_ptr<NativeModel> model(protocol::Shape in, protocol::Shape out, int source) {
  const protocol::Datatype* type = protocol::datatype("FP32");
  return std::make_shared<TimedModel>(std::vector<Time>{0, 2 * kMillisecond, 3 * kMillisecond},
                                      std::vector<Spec>{{"IN", type, in}}, std::vector<Spec>{{"OUT", type, out}},
                                      std::vector<int>{source});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::unique_ptr<char[]> memory(new char[4096]());  // of its own, so that its ends are guarded
  Script script({reinterpret_cast<const char*>(data), size});
  BatchLoop loop(script, {memory.get(), 4096});
  loop.know(0, model({2}, {2}, 0));
  loop.know(1, model({-1}, {-1}, 0));
  loop.know(2, model({2}, {-1, 3}, -1));
  const BatchLoop::PassOn pass_on = [](std::string_view packet, Time) { return packet.size() % 5 == 0; };
  for (std::size_t turn = 0; turn <= size; ++turn) loop.serve(0, pass_on);
  return 0;
}

namespace {

std::string order(std::mt19937& random) {
  std::string out;
  protocol::PackWriter pack(out);
  if (random() % 8 == 0) {
    pack.array(3);
    pack.text("CancelBatch");
    pack.number(random() % 8);
    pack.number(random() % 3 * kMillisecond);
    return out;
  }
  const auto model = random() % 4, size = random() % 3;
  pack.array(6);
  pack.text("RunBatch");
  pack.number(random() % 8);
  pack.number(model);
  pack.binary(size * sizeof(Member));
  for (std::size_t i = 0; i < size; ++i) {
    const std::int64_t rows = static_cast<std::int64_t>(random() % 3) + 1;
    const Member member{
        static_cast<std::int64_t>(random() % 9 * 512),       rows, static_cast<std::int64_t>(random()) % rows,
        static_cast<std::int64_t>(random() % 9 * 512 + 256), 64,   0};
    out.append(reinterpret_cast<const char*>(&member), sizeof member);
  }
  pack.number(random() % 9 * kMillisecond);
  if (model != 1) return pack.nil(), out;
  pack.array(size);
  for (std::size_t i = 0; i < size; ++i) {
    const auto rows = random() % 3 + 1, length = random() % 5 + 1;
    pack.array(1);
    pack.array(2);
    pack.array(2);
    pack.number(rows);
    pack.number(length);
    pack.number(4 * rows * length);
  }
  return out;
}

// Orders one after the other, with a few accidents.
std::string make_input(std::mt19937& random) {
  std::string whole;
  for (auto left = random() % 8 + 1; left > 0; --left) {
    std::string packet = order(random);
    for (auto accidents = random() % 3; accidents > 0 && !packet.empty(); --accidents) {
      const std::size_t at = random() % packet.size();
      if (random() % 4) packet[at] = static_cast<char>(random());
      else packet.erase(at, random() % 9);
    }
    whole += static_cast<char>(packet.size() & 255);
    whole += static_cast<char>(packet.size() >> 8);
    whole += packet;
  }
  return whole;
}

}  // namespace
