// The threads that speak gRPC, as Python sees them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/python_bytes.h"
#include "front/bind_threads.h"
#include "front/grpc/grpc_thread.h"

namespace astrarium::front {

// Its threads are the second half of the network threads among the exchange's origins.
struct BoundGrpc : BoundThreads<GrpcThread, GrpcShared> {
  BoundGrpc(BoundExchange& exchange, const std::vector<int>& listeners, std::size_t first, std::size_t head_bytes,
            std::size_t body_bytes, std::size_t message_bytes, std::size_t held_bytes, Time request, Time keep_alive,
            std::vector<std::string> keys)
      : BoundThreads(exchange,
                     std::make_shared<GrpcShared>(
                         *exchange.exchange, HttpLimits{head_bytes, body_bytes, held_bytes, request, keep_alive, 0},
                         message_bytes, Keys(std::move(keys))),
                     listeners, first) {}

  template <class Work>
  void tell(ConnectionNumber number, Work work) {
    of(number).post([&thread = of(number), work = std::move(work)] { work(thread); });
  }
};

// Each is a `PassedCall`, as aliases.nb has it.
inline nb::list passed_calls(BoundGrpc& self) {
  constexpr std::size_t kAtOnce = 64;  // the event loop looks at others, too, after some milliseconds
  auto [all, stalled] = self.shared->long_way.take(kAtOnce);
  if (stalled) self.read_on();
  nb::list rows;
  for (const PassedCall& call : all)
    rows.append(nb::make_tuple(
        static_cast<int>(call.kind), nb::make_tuple(call.connection, call.stream),
        nb::make_tuple(as_bytes(call.bytes), call.compressed), call.streams,
        nb::make_tuple(as_bytes(call.metadata), call.peer, call.why, call.received, call.patience, call.user)));
  return rows;
}

inline void bind_grpc(nb::module_& m) {
  using namespace nb::literals;
  using G = BoundGrpc;
  using Trailing = std::vector<std::pair<std::string, std::string>>;
  bind_threads(nb::class_<G>(m, "Grpc",
                             "The network threads that speak gRPC; *first* is their first origin. What is asked of a "
                             "call that is gone is forgotten."))
      .def(nb::init<BoundExchange&, const std::vector<int>&, std::size_t, std::size_t, std::size_t, std::size_t,
                    std::size_t, Time, Time, std::vector<std::string>>(),
           "exchange"_a, "listeners"_a, "first"_a, "head_bytes"_a, "body_bytes"_a, "message_bytes"_a, "held_bytes"_a,
           "request_ns"_a, "keep_alive_ns"_a, "keys"_a, nb::keep_alive<1, 2>())
      .def("passed", &passed_calls, nb::sig("def passed(self) -> list[PassedCall]"),
           "Take what waits for Python, some at a time: calls, their messages, and what became of them.")
      .def(
          "send",
          [](G& self, ConnectionNumber n, std::uint32_t stream, nb::bytes data) {
            self.tell(n, [=, bytes = std::string(data.c_str(), data.size())](GrpcThread& thread) {
              thread.send(n, stream, bytes);
            });
          },
          "connection"_a, "stream"_a, "message"_a, "Send a message of a call.")
      .def(
          "finish",
          [](G& self, ConnectionNumber n, std::uint32_t stream, int status, const std::string& details,
             const Trailing& trailing) {
            self.tell(n, [=](GrpcThread& thread) { thread.finish(n, stream, status, details, trailing); });
          },
          "connection"_a, "stream"_a, "status"_a, "details"_a, "trailing"_a,
          "End a call with a status and trailing metadata.")
      .def(
          "taken",
          [](G& self, ConnectionNumber n, std::uint32_t stream, std::size_t bytes) {
            self.tell(n, [=](GrpcThread& thread) { thread.taken(n, stream, bytes); });
          },
          "connection"_a, "stream"_a, "bytes"_a,
          "Say that a message of so many bytes was read: the client may send more.")
      .def(
          "forgotten", [](G& self, std::size_t metadata) { self.shared->forget_call(metadata); }, "metadata"_a,
          "Say that Python has nothing of a call any more, whose metadata had so many bytes.")
      .def(
          "heads", [](G& self) { return self.shared->heads.load(); },
          "Return how many bytes open streams, their metadata and unfinished frames take.")
      .def(
          "long_calls", [](G& self) { return self.shared->long_calls.load(); },
          "Return how many calls Python has, or wait for it.")
      .def(
          "left", [](G& self) { return self.shared->left.all(); },
          "Return how many connections were closed from this side, by reason.")
      .def(
          "tell_when_sent",
          [](G& self, ConnectionNumber n, std::uint32_t stream) {
            self.tell(n, [=](GrpcThread& thread) { thread.tell_when_sent(n, stream); });
          },
          "connection"_a, "stream"_a, "Pass CALL_SENT once the client has taken all that was sent of a call.");
  m.attr("CALL") = static_cast<int>(PassedCall::kCall);
  m.attr("MESSAGE") = static_cast<int>(PassedCall::kMessage);
  m.attr("CALL_END") = static_cast<int>(PassedCall::kEnd);
  m.attr("CALL_SENT") = static_cast<int>(PassedCall::kSent);
  m.attr("LEFT") = static_cast<int>(PassedCall::kLeft);
}

}  // namespace astrarium::front
