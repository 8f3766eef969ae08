// The express desk as the HTTP front sees it.
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "courier.h"
#include "desk.h"
#include "tensors_module.h"

namespace nb = nanobind;

namespace astrarium::express {
namespace {

// The desk, and the shared memory that it reads and writes.
struct BoundDesk {
  Py_buffer memory{};
  std::unique_ptr<Desk> desk;

  BoundDesk(nb::handle view, std::size_t largest_head, std::size_t largest_body) {
    if (PyObject_GetBuffer(view.ptr(), &memory, PyBUF_WRITABLE) != 0) throw nb::python_error();
    const auto size = static_cast<std::size_t>(memory.len);
    desk = std::make_unique<Desk>(static_cast<char*>(memory.buf), size, largest_head, largest_body);
  }
  ~BoundDesk() { PyBuffer_Release(&memory); }
  BoundDesk(const BoundDesk&) = delete;
  BoundDesk& operator=(const BoundDesk&) = delete;
};

// A call, and the request that its tensors still lie in until they are placed.
struct BoundCall {
  std::shared_ptr<Call> call;
  nb::object request;
  nb::object desk;

  void place(std::size_t offset) {
    if (!request.is_valid()) throw std::logic_error("the call was placed already");
    nb::cast<BoundDesk&>(desk).desk->place(*call, offset);
    for (Part& part : call->inputs) part = Part{};
    request.reset(), desk.reset();
  }
};

nb::bytes bytes(const std::string& text) { return nb::bytes(text.data(), text.size()); }

std::vector<Spec> specs(nb::list given) {
  std::vector<Spec> found;
  for (nb::handle one : given) {
    const auto [name, type, shape] = nb::cast<std::tuple<std::string, std::string, Shape>>(one);
    const Datatype* known = datatype(type);
    if (known == nullptr) throw std::invalid_argument("no datatype " + type);
    found.push_back({name, known, shape});
  }
  return found;
}

void serve(BoundDesk& self, int index, std::string name, std::string version, nb::list inputs, nb::list outputs,
           std::int64_t max_batch, std::int64_t objective, std::map<std::int64_t, std::int64_t> priorities) {
  self.desk->serve(std::make_shared<const Model>(Model{index, std::move(name), std::move(version), specs(inputs),
                                                       specs(outputs), max_batch, objective, std::move(priorities)}));
}

// A call; or how many bytes are missing; or, of a request that was refused on *socket*, its model and what the
// socket would not take; or why it has to go the long way.
nb::object read_request(nb::object self, nb::bytes data, std::int64_t waited, int socket) {
  Desk& desk = *nb::cast<BoundDesk&>(self).desk;
  Read found = desk.read({data.c_str(), data.size()}, socket < 0 ? 0 : waited);
  if (auto* missing = std::get_if<Missing>(&found)) return nb::int_(missing->bytes);
  if (auto* hopeless = std::get_if<Hopeless>(&found)) {
    if (socket >= 0) return nb::make_tuple(hopeless->model->index, bytes(desk.turn_down(socket, *hopeless, waited)));
    return nb::str("busy");
  }
  if (auto* other = std::get_if<LongWay>(&found)) return nb::str(other->why.data(), other->why.size());
  return nb::cast(BoundCall{std::move(std::get<std::unique_ptr<Call>>(found)), data, self});
}

// Of the system's coarse clock, in nanoseconds.
std::int64_t tick() {
  timespec found{};
  clock_getres(CLOCK_MONOTONIC_COARSE, &found);
  return std::int64_t{1'000'000'000} * found.tv_sec + found.tv_nsec;
}

// How long the newest bytes of a TCP connection have been here, in nanoseconds. The system counts in ticks; one
// that may just have begun is not counted. 0 where it does not know.
std::int64_t unread_for(int socket) {
  static const std::int64_t one = tick();
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return std::max<std::int64_t>(0, std::int64_t{1'000'000} * info.tcpi_last_data_recv - one);
}

Rooms rooms(const Call& call, std::size_t bytes, nb::handle shapes) {
  if (shapes.is_none()) return fixed_rooms(*call.model, nullptr, bytes);
  Rooms made{nullptr, bytes, {}, {}};
  for (nb::handle one : shapes) {
    made.shapes.push_back(nb::cast<Shape>(one[0]));
    made.sizes.push_back(nb::cast<std::size_t>(one[1]));
  }
  if (made.sizes.size() != call.model->outputs.size()) throw std::invalid_argument("shapes: one for each output");
  return made;
}

// Of (call, socket, offset, bytes of a room, shapes of a row or None): what the sockets would not take at once,
// and None for an answer that cannot be where it is said to be.
nb::list answer(BoundDesk& self, nb::list given) {
  nb::list left;
  std::size_t at = 0;
  for (nb::handle one : given) {
    const Call& call = *nb::cast<const BoundCall&>(one[0]).call;
    try {
      const auto rest = self.desk->answer(call, nb::cast<int>(one[1]), rooms(call, nb::cast<std::size_t>(one[3]), one[4]),
                                          nb::cast<std::size_t>(one[2]));
      if (rest) left.append(nb::make_tuple(at, nb::bytes(rest->data(), rest->size())));
    } catch (const std::exception&) {
      left.append(nb::make_tuple(at, nb::none()));
    }
    ++at;
  }
  return left;
}

nb::list shapes(const BoundCall& self) {
  nb::list found;
  for (const Part& part : self.call->inputs) {
    nb::list shape;
    for (const std::int64_t dimension : part.shape) shape.append(dimension);
    found.append(nb::make_tuple(nb::tuple(shape), part.data.size()));
  }
  return found;
}

// The courier (`EarlyReplies` in Python: the early reply thread), and the shared memory that it reads answers from.
struct BoundCourier {
  Py_buffer memory{};
  std::unique_ptr<Courier> courier;

  explicit BoundCourier(nb::handle view) {
    if (PyObject_GetBuffer(view.ptr(), &memory, PyBUF_SIMPLE) != 0) throw nb::python_error();
    courier = std::make_unique<Courier>(static_cast<const char*>(memory.buf), static_cast<std::size_t>(memory.len));
  }
  ~BoundCourier() {
    {
      nb::gil_scoped_release release;
      courier.reset();
    }
    PyBuffer_Release(&memory);
  }
  BoundCourier(const BoundCourier&) = delete;
  BoundCourier& operator=(const BoundCourier&) = delete;
};

// A client's line. The courier's thread gets the inner pointer: nothing of Python ends there.
struct BoundLine {
  std::shared_ptr<const Line> line;
  explicit BoundLine(int socket) : line(std::make_shared<const Line>(socket)) {}
};

// Of (call of one row, line, offset, bytes of its room, place in the batch).
void expect(BoundCourier& self, std::int64_t run, nb::list given) {
  std::vector<Parcel> parcels;
  for (nb::handle one : given) {
    const auto& call = nb::cast<const BoundCall&>(one[0]).call;
    const auto offset = nb::cast<std::size_t>(one[2]), room = nb::cast<std::size_t>(one[3]);
    parcels.push_back({call, one[1].is_none() ? nullptr : nb::cast<const BoundLine&>(one[1]).line, offset, room, nb::cast<std::size_t>(one[4])});
  }
  self.courier->expect(run, std::move(parcels));
}

// When answers were sent, to which of the parcels, and what some sockets did not take at once.
nb::tuple collect(BoundCourier& self, std::int64_t run) {
  const Delivered found = self.courier->collect(run);
  nb::list places;
  for (const std::size_t place : found.places) places.append(place);
  nb::list unsent;
  for (const auto& [at, rest] : found.unsent) unsent.append(nb::make_tuple(at, bytes(rest)));
  return nb::make_tuple(found.at, places, unsent);
}

nb::list packets(BoundCourier& self) {
  nb::list found;
  for (const Packet& packet : self.courier->packets()) found.append(nb::make_tuple(packet.worker, bytes(packet.bytes)));
  return found;
}

}  // namespace
}  // namespace astrarium::express

NB_MODULE(_express, m) {
  using namespace astrarium::express;
  using namespace nb::literals;
  nb::set_leak_warnings(false);  // a server holds its desk until the process ends
  m.attr("ALIGNMENT") = kAlignment;
  bind_tensors(m);
  m.attr("TICK") = tick();
  m.def("unread_for", &unread_for, "socket"_a);
  nb::class_<BoundCall>(m, "Call")
      .def_prop_ro("model", [](const BoundCall& self) { return self.call->model->index; })
      .def_prop_ro("rows", [](const BoundCall& self) { return self.call->rows; })
      .def_prop_ro("timeout_us", [](const BoundCall& self) { return self.call->timeout_us; })
      .def_prop_ro("priority", [](const BoundCall& self) { return self.call->priority; })
      .def_prop_ro("application", [](const BoundCall& self) { return self.call->application; })
      .def_prop_ro("authorization", [](const BoundCall& self) { return bytes(self.call->authorization); })
      .def_prop_ro("api_key", [](const BoundCall& self) { return bytes(self.call->api_key); })
      .def_prop_ro("block_bytes", [](const BoundCall& self) { return self.call->block_bytes(); })
      .def_prop_ro("shapes", &shapes)
      .def("place", &BoundCall::place, "offset"_a);
  nb::class_<BoundDesk>(m, "Desk")
      .def(nb::init<nb::handle, std::size_t, std::size_t>(), "memory"_a, "largest_head"_a, "largest_body"_a)
      .def("serve", &serve, "index"_a, "name"_a, "version"_a, "inputs"_a, "outputs"_a, "max_batch"_a,
           "objective"_a = 0, "priorities"_a = std::map<std::int64_t, std::int64_t>())
      .def("full", [](BoundDesk& self, int model, std::int64_t open) { self.desk->full(model, open); }, "model"_a, "open"_a)
      .def("plan", [](BoundDesk& self, int model, std::int64_t needed) { self.desk->plan(model, needed); }, "model"_a, "needed"_a)
      .def("withhold", [](BoundDesk& self, const std::string& name, std::string why) { self.desk->withhold(name, std::move(why)); }, "name"_a, "why"_a)
      .def("read", &read_request, "data"_a, "waited"_a = 0, "socket"_a = -1)
      .def("answer", &answer, "answers"_a);
  nb::class_<BoundLine>(m, "Line").def(nb::init<int>(), "socket"_a);
  nb::class_<BoundCourier>(m, "Courier")
      .def(nb::init<nb::handle>(), "memory"_a)
      .def("bell", [](const BoundCourier& self) { return self.courier->bell(); })
      .def("watch", [](BoundCourier& self, int worker, int socket) { self.courier->watch(worker, socket); }, "worker"_a, "socket"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("forget", [](BoundCourier& self, int worker) { self.courier->forget(worker); }, "worker"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("expect", &expect, "run"_a, "parcels"_a)
      .def("collect", &collect, "run"_a)
      .def("has_news", [](const BoundCourier& self) { return self.courier->has_news(); })
      .def("packets", &packets)
      .def("stop", [](BoundCourier& self) { self.courier->stop(); }, nb::call_guard<nb::gil_scoped_release>());
}
