// A worker's native loop as Python sees it, over a real connection or in a time that a test makes.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "common/python_bytes.h"
#include "tensors/bind_tensors.h"
#include "worker/batch_loop.h"
#include "worker/bind_specs.h"
#include "worker/graph_model.h"
#include "worker/scheduler_connection.h"
#include "worker/timed_model.h"

namespace astrarium::worker {

namespace nb = nanobind;

// The connection, the clock and the wait of a test, as worker.Worker takes them.
class PythonEnvironment : public Environment {
 public:
  PythonEnvironment(nb::callable clock, nb::callable receive, nb::callable send, nb::callable watch)
      : clock_(clock), receive_(receive), send_(send), watch_(watch) {}

  Time now() override {
    const nb::gil_scoped_acquire lock;
    return nb::cast<Time>(clock_());
  }
  std::optional<std::string_view> receive() override {
    const nb::gil_scoped_acquire lock;
    const auto packet = nb::cast<nb::bytes>(receive_());
    packet_.assign(packet.c_str(), packet.size());
    return packet_;
  }
  void say(const std::string& packet) override {
    const nb::gil_scoped_acquire lock;
    send_(as_bytes(packet));
  }
  bool wait(Time until, const std::function<bool()>& heard) override {
    const nb::gil_scoped_acquire lock;
    const auto listens = nb::cpp_function([&heard](Time) { return heard(); });
    return nb::cast<bool>(watch_(-1, listens)(until));
  }
  void wait_for(Time expected, const std::function<bool()>& ready, const std::function<void()>& heard) override {
    const nb::gil_scoped_acquire lock;
    const auto listens = nb::cpp_function([&heard](Time) { return heard(), false; });
    watch_(-1, listens)(expected, nb::cpp_function([&ready] { return ready(); }));
  }

 private:
  nb::callable clock_, receive_, send_, watch_;
  std::string packet_;
};

struct BoundLoop {
  protocol::Bytes memory;
  std::unique_ptr<Environment> around;
  BatchLoop loop;

  BoundLoop(nb::handle shared, std::unique_ptr<Environment> given)
      : memory(shared, PyBUF_WRITABLE),
        around(std::move(given)),
        loop(*around, {memory.data(), memory.view().size()}) {}

  void know(std::int64_t model, std::vector<Time> table, const std::vector<SpecRow>& inputs,
            const std::vector<SpecRow>& outputs, std::vector<int> sources) {
    const auto most = static_cast<int>(inputs.size());
    if (sources.size() != outputs.size()) throw std::invalid_argument("sources: expected one for each output");
    for (const int source : sources)
      if (source < -1 || source >= most)
        throw std::invalid_argument("sources: there is no input " + std::to_string(source));
    loop.know(model,
              std::make_shared<TimedModel>(std::move(table), specs_of(inputs), specs_of(outputs), std::move(sources)));
  }

  void know_graphs(std::int64_t model, std::shared_ptr<GraphRunner> runner) {
    loop.know(model, std::make_shared<GraphModel>(std::move(runner)));
  }

  Time serve(Time free, const nb::callable& obey) {
    const BatchLoop::PassOn pass_on = [&obey](std::string_view packet, Time received) {
      const nb::gil_scoped_acquire lock;
      return nb::cast<bool>(obey(as_bytes(packet), received));
    };
    const nb::gil_scoped_release release;
    return loop.serve(free, pass_on);
  }
};

inline void bind_batch_loop(nb::module_& m) {
  using namespace nb::literals;
  nb::exception<DeviceLost>(m, "DeviceLost").attr("__doc__") = "The GPU can do nothing more for this process.";
  nb::class_<BoundLoop>(m, "BatchLoop", "A worker's loop over a connection, or in a time that a test makes.")
      .def(
          "__init__",
          [](BoundLoop* self, nb::handle memory, int socket) {
            new (self) BoundLoop(memory, std::make_unique<SchedulerConnection>(socket));
          },
          "memory"_a, "socket"_a, nb::sig("def __init__(self, memory: Buffer, socket: int) -> None"))
      .def(
          "__init__",
          [](BoundLoop* self, nb::handle memory, nb::callable clock, nb::callable receive, nb::callable send,
             nb::callable watch) {
            new (self) BoundLoop(memory, std::make_unique<PythonEnvironment>(clock, receive, send, watch));
          },
          "memory"_a, "clock"_a, "receive"_a, "send"_a, "watch"_a,
          nb::sig("def __init__(self, memory: Buffer, clock: collections.abc.Callable[[], int], "
                  "receive: collections.abc.Callable[[], bytes], send: collections.abc.Callable[[bytes], object], "
                  "watch: Watch) -> None"))
      .def(
          "know", &BoundLoop::know, "model"_a, "table"_a, "inputs"_a, "outputs"_a, "sources"_a,
          "Run this model here: its batches take the times in the table, by size, and hand inputs back as outputs. The "
          "sources say which input each output is; -1: zeros.")
      .def("know_graphs", &BoundLoop::know_graphs, "model"_a, "runner"_a, "Run this model here, in CUDA graphs.")
      .def(
          "forget", [](BoundLoop& self, std::int64_t model) { self.loop.forget(model); }, "model"_a,
          "Leave batches of this model to Python from now on.")
      .def(
          "serve", &BoundLoop::serve, "free"_a, "obey"_a,
          nb::sig("def serve(self, free: int, obey: collections.abc.Callable[[bytes, int], bool]) -> int"),
          "Hear orders and run batches until Python wants its turn, or there is nothing to do. Orders for Python go to "
          "obey, with when they came; it returns whether it wants its turn. Given and returned is when the GPU is "
          "free.");
}

}  // namespace astrarium::worker
