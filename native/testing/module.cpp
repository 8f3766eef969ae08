// astrarium._testing: what tests and benchmarks see of native code, and users do not. Built with ASTRARIUM_TESTING.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>

#include "front/http2/header_compression.h"
#include "testing/bind_hull.h"
#include "testing/bind_loopback.h"
#include "testing/bind_steps.h"
#include "testing/bind_timed_policy.h"
#include "testing/feed.h"

namespace astrarium::front {
namespace {

// The fields of header blocks, one after the other, for tests; None where one cannot be read.
nb::object read_blocks(const std::vector<nb::bytes>& blocks, std::size_t table) {
  HpackDecoder decoder(table);
  nb::list found;
  for (const nb::bytes& block : blocks) {
    nb::list fields;
    const auto take = [&fields](std::string_view name, std::string_view value, bool) {
      fields.append(nb::make_tuple(as_bytes(name), as_bytes(value)));
    };
    if (!decoder.decode({block.c_str(), block.size()}, take)) return nb::none();
    found.append(nb::make_tuple(fields, decoder.table_bytes()));
  }
  return found;
}

void bind_measurements(nb::module_& m) {
  using namespace nb::literals;
  // (answered, dropped, batches, steps) of so many requests at such a rate, heard every so often.
  m.def(
      "feed",
      [](const Setup& setup, const Parameters& parameters, std::int64_t requests, double per_second, Time turn,
         double profiled_share) {
        const Fed fed =
            Feed(setup, parameters.policy, live_twin(parameters), profiled_share).run(requests, per_second, turn);
        return std::tuple(fed.answered, fed.dropped, fed.batches, fed.steps);
      },
      "setup"_a, "parameters"_a, "requests"_a, "per_second"_a, "turn"_a, "profiled_share"_a = 0.0,
      nb::call_guard<nb::gil_scoped_release>());
  m.def("read_blocks", &read_blocks, "blocks"_a, "table"_a);
}

}  // namespace
}  // namespace astrarium::front

NB_MODULE(_testing, m) {
  nanobind::set_leak_warnings(false);                  // a loopback may hold its thread until the process ends
  nanobind::module_::import_("astrarium._simulator");  // whose types, and those of the front, these functions take
  nanobind::module_::import_("astrarium._front");
  astrarium::bind_hull(m);
  astrarium::bind_timed_policy(m);
  astrarium::front::bind_loopback(m);
  astrarium::front::bind_steps(m);
  astrarium::front::bind_measurements(m);
}
