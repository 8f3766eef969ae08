// Threads that read calls, as Python sees them, whatever they speak.
#pragma once

#include <fcntl.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <future>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "exchange/bind_exchange.h"
#include "front/event_thread.h"
#include "front/long_way.h"
#include "front/served_model.h"

namespace astrarium::front {

namespace nb = nanobind;

// They live as long as the exchange: their tickets may come back late.
template <class Thread, class Shared>
struct BoundThreads {
  std::shared_ptr<Shared> shared;
  std::vector<std::shared_ptr<Thread>> threads;
  std::size_t first;  // origin of theirs

  BoundThreads(BoundExchange& exchange, std::shared_ptr<Shared> given, const std::vector<int>& listeners,
               std::size_t first)
      : shared(std::move(given)), first(first) {
    for (const int listener : listeners) {
      const int fd = ::fcntl(listener, F_DUPFD_CLOEXEC, 0);
      if (fd < 0) throw std::runtime_error("no descriptor for the listener");
      ::fcntl(fd, F_SETFL, O_NONBLOCK);
      threads.push_back(std::make_shared<Thread>(shared, static_cast<int>(first + threads.size()), fd));
      exchange.exchange->kept.push_back(threads.back());
    }
  }
  ~BoundThreads() { stop(); }

  void start() {
    for (const auto& thread : threads) thread->start();
  }
  void stop() {
    nb::gil_scoped_release release;
    for (const auto& thread : threads) thread->stop();
  }
  void drain() {
    for (const auto& thread : threads) thread->post([thread = thread.get()] { thread->drain(); });
  }

  // Until every thread has done what it was asked before.
  void synchronize() {
    nb::gil_scoped_release release;
    std::vector<std::future<void>> done;
    for (const auto& thread : threads) {
      auto promise = std::make_shared<std::promise<void>>();
      done.push_back(promise->get_future());
      thread->post([promise] { promise->set_value(); });
    }
    for (auto& future : done) future.wait();
  }

  void serve(const ServedModel& model) {
    for (const auto& thread : threads) thread->post([thread = thread.get(), model] { thread->serve(model); });
  }
  void withhold(const std::string& name, const std::string& why) {
    for (const auto& thread : threads)
      thread->post([thread = thread.get(), name, why] { thread->withhold(name, why); });
  }
  void read_on() {
    for (const auto& thread : threads) thread->post([thread = thread.get()] { thread->read_on(); });
  }

  Thread& of(ConnectionNumber number) { return *threads.at((number >> 48) - first); }
};

inline std::vector<protocol::Spec> specs_of(nb::list given) {
  std::vector<protocol::Spec> specs;
  for (nb::handle spec : given) {
    using Limits = std::tuple<std::int64_t, std::int64_t, std::string>;
    const auto fields = nb::cast<nb::tuple>(spec);
    const auto shape = nb::cast<protocol::Shape>(fields[2]);
    const auto limits = nb::cast<std::optional<Limits>>(fields[3]);
    const auto type = nb::cast<std::string>(fields[1]);
    const protocol::Datatype* known = protocol::datatype(type);
    if (known == nullptr) throw std::invalid_argument("no datatype " + type);
    specs.push_back({nb::cast<std::string>(fields[0]), known, shape});
    if (fields.size() > 4) specs.back().ranges = nb::cast<decltype(protocol::Spec::ranges)>(fields[4]);
    if (!specs.back().ranges.empty() && specs.back().ranges.size() != shape.size())
      throw std::invalid_argument("a range for each dimension");
    if (limits) specs.back().limits = std::make_from_tuple<protocol::Limits>(*limits);
  }
  return specs;
}

// Of each axis the input, the dimension and its buckets, and the last number before each cell.
using Numbered = std::optional<
    std::pair<std::vector<std::tuple<std::size_t, std::size_t, std::vector<std::int64_t>>>, std::vector<std::int64_t>>>;

inline std::optional<ShapeNumbers> numbers_of(const Numbered& given, const std::vector<protocol::Spec>& inputs) {
  if (!given) return std::nullopt;
  std::vector<ShapeNumbers::Axis> axes;
  for (const auto& [input, dimension, buckets] : given->first) axes.push_back({input, dimension, buckets});
  return ShapeNumbers(std::move(axes), given->second, inputs);
}

// The number of its tokenizer, and what workers get.
using Tokenized = std::optional<std::pair<int, nb::list>>;

inline std::optional<TokenInputs> token_inputs_of(const Tokenized& given) {
  if (!given) return std::nullopt;
  return TokenInputs{given->first, specs_of(given->second)};
}

template <class Bound>
void serve(Bound& self, int index, std::string name, std::string version, nb::list inputs, nb::list outputs,
           std::int64_t max_batch, Time objective, std::map<std::int64_t, Time> priorities,
           std::vector<std::string> applications, const Numbered& numbered, const Tokenized& tokenized) {
  if (index < 0 || static_cast<std::size_t>(index) >= self.shared->exchange.models) throw std::out_of_range("index");
  protocol::Model model{index,     std::move(name), std::move(version),   specs_of(inputs), specs_of(outputs),
                        max_batch, objective,       std::move(priorities)};
  auto numbers = numbers_of(numbered, model.inputs);
  auto tokens = token_inputs_of(tokenized);
  self.serve(ServedModel(std::move(model), std::move(applications), std::move(numbers), std::move(tokens)));
}

template <class N>
void bind_counts(nb::class_<N>& bound) {
  bound
      .def(
          "connections", [](N& self) { return self.shared->connections.load(); },
          "Return how many connections are open.")
      .def(
          "held", [](N& self) { return self.shared->held.load(); },
          "Return how many bytes are held of requests that are not whole, and of answers that nobody takes.")
      .def(
          "turned_away",
          [](N& self) {
            std::int64_t connections = 0;
            for (const auto& thread : self.threads) connections += thread->turned_away();
            return connections;
          },
          "Return for how many connections there was no descriptor.")
      .def(
          "long_way", [](N& self) { return self.shared->long_way.reasons(); },
          "Return how often something was passed to Python, by reason.")
      .def(
          "cpu_ns",
          [](N& self) {
            std::vector<Time> times;
            for (const auto& thread : self.threads) times.push_back(thread->cpu_time());
            return times;
          },
          "Return the CPU time that each thread has had.");
}

template <class N>
nb::class_<N> bind_threads(nb::class_<N> bound) {
  using namespace nb::literals;
  bind_counts(bound);
  return bound.def("start", &N::start, "Start the threads, one for each listener.")
      .def("drain", &N::drain, "Take no more connections, and close each one after its last answer.")
      .def("stop", &N::stop, "End the threads at once, with all their connections.")
      .def("synchronize", &N::synchronize, "Wait until every thread has done what it was asked before.")
      .def("serve", &serve<N>, "index"_a, "name"_a, "version"_a, "inputs"_a, "outputs"_a, "max_batch"_a, "objective"_a,
           "priorities"_a, "applications"_a, "numbered"_a = nb::none(), "tokenized"_a = nb::none(),
           nb::sig("def serve(self, index: int, name: str, version: str, inputs: list[Spec], "
                   "outputs: list[Spec], max_batch: int, objective: int, "
                   "priorities: collections.abc.Mapping[int, int], applications: collections.abc.Sequence[str], "
                   "numbered: Numbered | None = None, tokenized: tuple[int, list[Spec]] | None = None) -> None"),
           "Take plain calls of a model from now on, without Python; priorities have objectives of their own. Where "
           "it is *numbered*, the shapes of its items are, in the place of a length: of each axis the input, the "
           "dimension and the buckets, and the last number before each cell. Where its calls are *tokenized*, the "
           "number of the tokenizer, and the inputs of workers.")
      .def("withhold", &N::withhold, "name"_a, "why"_a, "Pass calls of a model to Python from now on, for that reason.")
      .def(
          "fd", [](N& self) { return self.shared->long_way.fd(); },
          "Return a descriptor that can be read while something waits in `passed`.");
}

}  // namespace astrarium::front
