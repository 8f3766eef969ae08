// The simulation: clients of one GPU, and what became of their requests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "simulation/simulate.h"

namespace nb = nanobind;

namespace {

using namespace gate::sim;

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::object column(std::vector<T> &&values) {
    auto *kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void *p) noexcept { delete static_cast<std::vector<T> *>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner));
}

// Columns of equal length: one row a kernel of a request, in order.
std::vector<Kernel> kernels(Column<std::int64_t> duration, Column<std::int32_t> sms, Column<std::int32_t> kind,
                            Column<double> compute, Column<double> memory, Column<std::int32_t> phase) {
    const std::size_t count = duration.size();
    if (sms.size() != count || kind.size() != count || compute.size() != count || memory.size() != count ||
        phase.size() != count)
        throw std::invalid_argument("the columns of kernels must have the same length");
    std::vector<Kernel> made(count);
    for (std::size_t i = 0; i < count; ++i) {
        if (duration(i) < 0 || sms(i) < 0 || kind(i) < 0) throw std::invalid_argument("a kernel's numbers are below 0");
        made[i].work = {static_cast<std::uint64_t>(duration(i)), static_cast<std::uint32_t>(sms(i)),
                        static_cast<std::uint32_t>(kind(i))};
        made[i].use = {compute(i), memory(i)};
        made[i].phase = phase(i);
    }
    return made;
}

void bind_client(nb::module_ &m) {
    nb::class_<ClientSpec>(m, "Client",
                           "The kernels of one request as columns, and how requests come: at `arrivals`, or one after "
                           "the other.")
        .def(
            "__init__",
            [](ClientSpec *c, bool latency, Column<std::int64_t> duration, Column<std::int32_t> sms,
               Column<std::int32_t> kind, Column<double> compute, Column<double> memory, Column<std::int32_t> phase,
               std::optional<std::vector<Time>> arrivals, std::int64_t requests, Time gap, bool graph, bool synchronize,
               std::int64_t ahead, Time between) {
                new (c) ClientSpec{latency ? GATE_LATENCY : GATE_BEST_EFFORT,
                                   kernels(duration, sms, kind, compute, memory, phase),
                                   std::move(arrivals),
                                   requests,
                                   gap,
                                   graph,
                                   synchronize,
                                   ahead,
                                   between};
            },
            nb::arg("latency"), nb::arg("duration"), nb::arg("sms"), nb::arg("kind"), nb::arg("compute"),
            nb::arg("memory"), nb::arg("phase"), nb::kw_only(), nb::arg("arrivals").none() = nb::none(),
            nb::arg("requests") = 0, nb::arg("gap") = 0, nb::arg("graph") = false, nb::arg("synchronize") = true,
            nb::arg("ahead") = 1024, nb::arg("between") = 0,
            nb::sig("def __init__(self, latency: bool, duration: Ints, sms: Ints, kind: Ints, compute: Floats, "
                    "memory: Floats, phase: Ints, *, arrivals: collections.abc.Sequence[int] | None = None, "
                    "requests: int = 0, gap: int = 0, graph: bool = False, synchronize: bool = True, "
                    "ahead: int = 1024, between: int = 0) -> None"));
}

nb::dict client_columns(ClientResult &&client) {
    nb::dict out;
    out["arrival"] = column(std::move(client.arrival));
    out["begin"] = column(std::move(client.begin));
    out["end"] = column(std::move(client.end));
    out["launches"] = client.launches;
    out["kernels"] = client.kernels;
    out["held_ns"] = client.held_ns;
    nb::dict held;
    for (std::uint32_t verdict = 1; verdict < GATE_VERDICTS; ++verdict)
        held[gate_verdict_name(verdict)] = client.held[verdict];
    out["held"] = held;
    return out;
}

nb::dict simulated(const Setting &setting, const std::vector<ClientSpec> &clients) {
    Result result;
    {
        nb::gil_scoped_release release;
        result = simulate(setting, clients);
    }
    nb::list columns;
    for (ClientResult &client : result.clients) columns.append(client_columns(std::move(client)));
    const auto whole = static_cast<double>(std::max<Time>(result.ended, 1));
    nb::dict out, usage;
    usage["sms"] = result.usage.sms / whole;
    usage["compute"] = result.usage.compute / whole;
    usage["memory"] = result.usage.memory / whole;
    out["clients"] = columns;
    out["usage"] = usage;
    out["ended"] = result.ended;
    out["knobs"] = result.knobs;
    return out;
}

}  // namespace

void bind_simulation(nb::module_ &m) {
    bind_client(m);
    const GpuSpec gpu;
    const Setting setting;
    m.def(
        "simulate",
        [](const gate_knobs &knobs, const std::vector<ClientSpec> &clients, std::optional<Time> until,
           double shared_capacity, bool priority, Time seen, Time relaunch, Time fence, bool one_interpreter,
           bool learn, double search_limit) -> nb::typed<nb::dict, nb::str, nb::any> {
            return simulated({{knobs.sms, shared_capacity, priority},
                              knobs,
                              until.value_or(kNever),
                              seen,
                              relaunch,
                              fence,
                              one_interpreter,
                              learn,
                              search_limit},
                             clients);
        },
        nb::arg("knobs"), nb::arg("clients"), nb::kw_only(), nb::arg("until").none() = nb::none(),
        nb::arg("shared_capacity") = gpu.shared_capacity, nb::arg("priority") = gpu.priority,
        nb::arg("seen") = setting.seen, nb::arg("relaunch") = setting.relaunch, nb::arg("fence") = setting.fence,
        nb::arg("one_interpreter") = setting.one_interpreter, nb::arg("learn") = setting.learn,
        nb::arg("search_limit") = setting.search_limit,
        "Simulate clients of one GPU until they have ended, or for so long, and return what became of their requests, "
        "how "
        "busy the GPU was, and the knobs as they were learnt.");
}
