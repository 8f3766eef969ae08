// astrarium._testing: what tests and benchmarks see of native code, and users do not. Built with ASTRARIUM_TESTING.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "front/http2/header_compression.h"
#include "testing/bind_hull.h"
#include "testing/bind_loopback.h"
#include "testing/bind_steps.h"
#include "testing/bind_timed_policy.h"
#include "testing/clients.h"
#include "testing/feed.h"

namespace astrarium::front {
namespace {

using PhaseNumbers = std::tuple<Time, std::int64_t, double>;
using OutcomeNumbers = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

std::vector<OutcomeNumbers> serve_clients(const Setup& setup, const Parameters& parameters,
                                          const std::vector<PhaseNumbers>& phases, Time way, double slower,
                                          std::vector<int> lengths) {
  std::vector<Phase> all;
  for (const auto& [until, clients, per_second] : phases) all.push_back({until, clients, per_second});
  VirtualClients world(setup, parameters.policy, live_twin(parameters), way, slower, std::move(lengths));
  std::vector<OutcomeNumbers> outcomes;
  for (const PhaseOutcome& outcome : world.run(all))
    outcomes.emplace_back(outcome.in_time, outcome.late, outcome.dropped, outcome.refused);
  return outcomes;
}

nb::object read_blocks(const std::vector<nb::bytes>& blocks, std::size_t table) {
  HpackDecoder decoder(table);
  nb::list headers;
  for (const nb::bytes& block : blocks) {
    nb::list fields;
    const auto take = [&fields](std::string_view name, std::string_view value, bool) {
      fields.append(nb::make_tuple(as_bytes(name), as_bytes(value)));
    };
    if (!decoder.decode({block.c_str(), block.size()}, take)) return nb::none();
    headers.append(nb::make_tuple(fields, decoder.table_bytes()));
  }
  return headers;
}

void bind_measurements(nb::module_& m) {
  using namespace nb::literals;
  m.def(
      "feed",
      [](const Setup& setup, const Parameters& parameters, std::int64_t requests, double per_second, Time turn,
         double profiled_share) {
        const Fed fed =
            Feed(setup, parameters.policy, live_twin(parameters), profiled_share).run(requests, per_second, turn);
        return std::tuple(fed.answered, fed.dropped, fed.batches, fed.steps);
      },
      "setup"_a, "parameters"_a, "requests"_a, "per_second"_a, "turn"_a, "profiled_share"_a = 0.0,
      nb::call_guard<nb::gil_scoped_release>(),
      "Feed the scheduler so many requests at a rate, heard every *turn*, and return how many were answered and "
      "dropped, "
      "and how many batches and steps that took.");
  m.def("serve_clients", &serve_clients, "setup"_a, "parameters"_a, "phases"_a, "way"_a = 0, "slower"_a = 1.0,
        "lengths"_a = std::vector<int>(), nb::call_guard<nb::gil_scoped_release>(),
        nb::sig("def serve_clients(setup: astrarium._simulator.Setup, parameters: astrarium._simulator.Parameters, "
                "phases: collections.abc.Sequence[tuple[int, int, float]], way: int = 0, slower: float = 1.0, "
                "lengths: collections.abc.Sequence[int] = ()) -> list[tuple[int, int, int, int]]"),
        "Serve clients in virtual time: of each phase until when it lasts, how many clients send again when they have "
        "their answer, and how many calls a second others send. A call takes *way* to the server, batches *slower* "
        "times what the setup says; calls have *lengths*, one after the other. Return how many calls of each phase "
        "were in time, late, dropped and refused.");
  m.def("read_blocks", &read_blocks, "blocks"_a, "table"_a,
        nb::sig("def read_blocks(blocks: collections.abc.Sequence[bytes], table: int) -> "
                "list[tuple[list[tuple[bytes, bytes]], int]] | None"),
        "Return the fields of header blocks that follow each other, with the bytes in the table after each; None where "
        "one "
        "cannot be read.");
}

}  // namespace
}  // namespace astrarium::front

NB_MODULE(_testing, m) {
  m.doc() = "What tests and benchmarks see of native code, and users do not.";
  nanobind::set_leak_warnings(false);                  // a loopback may hold its thread until the process ends
  nanobind::module_::import_("astrarium._simulator");  // whose types, and those of the front, these functions take
  nanobind::module_::import_("astrarium._front");
  astrarium::bind_hull(m);
  astrarium::bind_timed_policy(m);
  astrarium::front::bind_loopback(m);
  astrarium::front::bind_steps(m);
  astrarium::front::bind_measurements(m);
}
