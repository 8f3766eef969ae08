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
