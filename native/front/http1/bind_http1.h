// The threads that speak HTTP/1.1, as Python sees them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/python_bytes.h"
#include "front/bind_threads.h"
#include "front/http1/http1_thread.h"

namespace astrarium::front {

namespace nb = nanobind;

struct BoundHttp1 : BoundThreads<Http1Thread, Http1Shared> {
  BoundHttp1(BoundExchange& exchange, const std::vector<int>& listeners, std::size_t head_bytes, std::size_t body_bytes,
             std::size_t held_bytes, Time request, Time keep_alive, std::int64_t connections,
             std::vector<std::string> keys, nb::bytes too_slow, nb::bytes no_descriptor)
      : BoundThreads(
            exchange,
            std::make_shared<Http1Shared>(
                *exchange.exchange, HttpLimits{head_bytes, body_bytes, held_bytes, request, keep_alive, connections},
                Keys(std::move(keys)), std::string(too_slow.c_str(), too_slow.size()),
                std::string(no_descriptor.c_str(), no_descriptor.size())),
            listeners, 0) {}
};

// Each is a `PassedBytes`, as aliases.nb has it.
inline nb::list passed(BoundHttp1& self) {
  auto [all, stalled] = self.shared->long_way.take();
  if (stalled) self.read_on();
  nb::list rows;
  for (const Passed& item : all)
    rows.append(nb::make_tuple(static_cast<int>(item.kind), item.connection, as_bytes(item.bytes), item.why,
                               item.received, item.error, nb::make_tuple(item.peer.host, item.peer.port),
                               item.peer.user));
  return rows;
}

inline void bind_http1(nb::module_& m) {
  using namespace nb::literals;
  using N = BoundHttp1;
  bind_threads(nb::class_<N>(
                   m, "Network",
                   "The network threads that speak HTTP/1.1. What is asked of a connection that is gone is forgotten."))
      .def(nb::init<BoundExchange&, const std::vector<int>&, std::size_t, std::size_t, std::size_t, Time, Time,
                    std::int64_t, std::vector<std::string>, nb::bytes, nb::bytes>(),
           "exchange"_a, "listeners"_a, "head_bytes"_a, "body_bytes"_a, "held_bytes"_a, "request_ns"_a,
           "keep_alive_ns"_a, "connections"_a, "keys"_a, "too_slow"_a, "no_descriptor"_a, nb::keep_alive<1, 2>())
      .def("passed", &passed, nb::sig("def passed(self) -> list[PassedBytes]"),
           "Take what waits for Python: bytes, and what became of connections.")
      .def(
          "write",
          [](N& self, ConnectionNumber n, nb::bytes data) {
            self.of(n).post(
                [&t = self.of(n), n, bytes = std::string(data.c_str(), data.size())] { t.write(n, bytes); });
          },
          "connection"_a, "data"_a, "Send bytes to a client.")
      .def(
          "tell_when_sent",
          [](N& self, ConnectionNumber n) { self.of(n).post([&t = self.of(n), n] { t.tell_when_sent(n); }); },
          "connection"_a, "Pass SENT once the client has taken all that was written.")
      .def(
          "pause",
          [](N& self, ConnectionNumber n, bool paused) {
            self.of(n).post([&t = self.of(n), n, paused] { t.pause(n, paused); });
          },
          "connection"_a, "paused"_a, "Read nothing more of a client for now, or read on.")
      .def(
          "close", [](N& self, ConnectionNumber n) { self.of(n).post([&t = self.of(n), n] { t.close_soon(n); }); },
          "connection"_a, "Close a connection after all that was written.")
      .def(
          "linger", [](N& self, ConnectionNumber n) { self.of(n).post([&t = self.of(n), n] { t.linger(n); }); },
          "connection"_a, "Close it so that a client in the middle of sending can still read why.")
      .def(
          "abort", [](N& self, ConnectionNumber n) { self.of(n).post([&t = self.of(n), n] { t.abort(n); }); },
          "connection"_a, "Close a connection at once.")
      .def(
          "take_back",
          [](N& self, ConnectionNumber n, std::uint64_t received, nb::bytes data) {
            self.of(n).post([&t = self.of(n), n, received, bytes = std::string(data.c_str(), data.size())] {
              t.take_back(n, received, bytes);
            });
          },
          "connection"_a, "received"_a, "data"_a,
          "Send the rest of an answer; if nothing came after the first *received* bytes, calls need no Python again.");
  m.def(
      "user_of_peer", [](int fd) { return user_of_peer(fd).value_or(RegionOwner::kUnknown); }, "fd"_a,
      "Return which user of this machine is at the other end of a connection over loopback, or -2.");
  m.attr("DATA") = static_cast<int>(Passed::kData);
  m.attr("END") = static_cast<int>(Passed::kEnd);
  m.attr("SENT") = static_cast<int>(Passed::kSent);
  m.attr("LOST") = static_cast<int>(Passed::kLost);
}

}  // namespace astrarium::front
