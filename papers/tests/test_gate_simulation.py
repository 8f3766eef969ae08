"""The simulated GPU: truths of its model, each policy in a small case, and that nothing gets lost."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from astrarium import _gate as gate
from astrarium_papers.findings import Effort
from astrarium_papers.orion import table2

UNKNOWN, COMPUTE, MEMORY, COPY = range(4)
LATENCY = True
BEST_EFFORT = False
SMS = 80
US = 1000
MS = 1000 * US


class K(NamedTuple):
    """A kernel of a test; full and compute-bound unless told otherwise."""

    duration: int
    sms: int = SMS
    kind: int = COMPUTE
    compute: float = 0.95
    memory: float = 0.0
    phase: int = 0


def small(duration: int, kind: int = COMPUTE, sms: int = 8) -> K:
    """It disturbs nobody but by the SMs it takes."""
    return K(duration, sms, kind, 0.05, 0.05)


def client(latency: bool, kernels: list[K], **how: Any) -> gate.Client:
    duration, sms, kind, compute, memory, phase = zip(*kernels, strict=True)
    return gate.Client(
        latency,
        np.array(duration, np.int64),
        np.array(sms, np.int32),
        np.array(kind, np.int32),
        np.array(compute),
        np.array(memory),
        np.array(phase, np.int32),
        **how,
    )


def knobs(policy: str, **values: Any) -> gate.Knobs:
    chosen = gate.defaults(policy, SMS)
    for name, value in values.items():
        setattr(chosen, name, value)
    return chosen


def simulate(policy: str | gate.Knobs, *clients: gate.Client, **how: Any) -> dict[str, Any]:
    """Without delays around the GPU unless told otherwise."""
    chosen = knobs(policy) if isinstance(policy, str) else policy
    return gate.simulate(chosen, list(clients), **{"seen": 0, "relaunch": 0, "fence": 0, **how})


def ends(result: dict[str, Any], number: int) -> list[int]:
    instants: list[int] = result["clients"][number]["end"].tolist()
    return instants


def held(result: dict[str, Any], number: int) -> dict[str, int]:
    return {reason: count for reason, count in result["clients"][number]["held"].items() if count}


def test_alone_a_request_takes_the_sum_of_its_kernels() -> None:
    result = simulate(
        "streams", client(LATENCY, [K(3 * US), small(5 * US), K(7 * US, kind=MEMORY)], requests=2)
    )
    assert ends(result, 0) == [15 * US, 30 * US]


def test_alone_every_policy_lets_a_client_run() -> None:
    for policy in gate.policy_names():
        for role in (LATENCY, BEST_EFFORT):
            result = simulate(policy, client(role, [K(3 * US), K(5 * US)], requests=3), until=MS)
            assert ends(result, 0) == [8 * US, 16 * US, 24 * US], policy


def test_an_end_is_seen_later_and_the_next_request_waits_for_that() -> None:
    result = simulate("streams", client(LATENCY, [K(10 * US)], requests=2), seen=3 * US)
    assert ends(result, 0) == [13 * US, 26 * US]


def test_short_kernels_wait_for_their_launches_but_not_those_of_a_graph() -> None:
    kernels = [K(2 * US)] * 10
    eager = simulate("streams", client(LATENCY, kernels, requests=1, gap=5 * US))
    graph = simulate("streams", client(LATENCY, kernels, requests=1, gap=5 * US, graph=True))
    assert ends(eager, 0) == [10 * 5 * US + 2 * US]
    assert ends(graph, 0) == [5 * US + 10 * 2 * US]
    assert (eager["clients"][0]["launches"], graph["clients"][0]["launches"]) == (10, 1)
    assert graph["clients"][0]["kernels"] == 10


def test_between_two_kernels_of_a_stream_time_passes_in_which_others_run() -> None:
    kernels = [K(2 * US)] * 10
    alone = simulate("streams", client(LATENCY, kernels, requests=1, graph=True, between=3 * US))
    assert ends(alone, 0) == [10 * 2 * US + 9 * 3 * US]
    beside = client(BEST_EFFORT, [K(3 * US)] * 9, requests=1, graph=True, between=2 * US)
    both = simulate("streams", client(LATENCY, kernels, requests=1, graph=True, between=3 * US), beside)
    assert (ends(both, 0), ends(both, 1)) == ([10 * 2 * US + 9 * 3 * US], [9 * 5 * US])


def test_requests_that_have_arrived_wait_in_order() -> None:
    result = simulate("streams", client(LATENCY, [K(10 * US)], arrivals=[0, 2 * US, 50 * US]))
    assert ends(result, 0) == [10 * US, 20 * US, 60 * US]
    assert result["clients"][0]["arrival"].tolist() == [0, 2 * US, 50 * US]


def test_two_compute_kernels_side_by_side_take_as_long_as_one_after_the_other() -> None:
    result = simulate("streams", *(client(BEST_EFFORT, [K(MS)], requests=1) for _ in range(2)))
    assert result["ended"] == 2 * MS


def test_two_small_compute_kernels_share_what_they_are_bound_by() -> None:
    """Both have their SMs; the arithmetic that both ask for is not there."""
    kernel = K(MS, SMS // 2, COMPUTE, 0.8, 0.0)
    result = simulate("streams", *(client(BEST_EFFORT, [kernel], requests=1) for _ in range(2)))
    assert result["ended"] == pytest.approx(MS * 2 * 0.8 / 0.91, rel=1e-6)


def test_kernels_that_need_different_things_overlap() -> None:
    """Beside a full compute kernel there are threads left on 40 % of the SMs."""
    compute = K(MS, SMS, COMPUTE, 0.8, 0.05)
    memory = K(MS, SMS * 4 // 10, MEMORY, 0.05, 0.8)
    result = simulate(
        "streams", client(BEST_EFFORT, [compute], requests=1), client(BEST_EFFORT, [memory], requests=1)
    )
    assert result["ended"] == MS


def test_a_full_memory_kernel_leaves_no_room_and_a_compute_kernel_some() -> None:
    compute = K(MS, SMS, COMPUTE, 0.1)
    memory = K(MS, SMS, MEMORY, 0.1)

    def both(first: K, second: K) -> int:
        clients = (client(BEST_EFFORT, [kernel], requests=1) for kernel in (first, second))
        return int(simulate("streams", *clients)["ended"])

    assert both(memory, compute) == 2 * MS
    assert both(compute, memory) == 1.6 * MS  # at 40 % of its speed at first


def test_a_kernel_gets_the_sms_that_are_left_and_more_when_they_are_freed() -> None:
    """60 of 80 SMs for the first; the second runs at a quarter of its speed for 1 ms, then at full speed."""
    first = K(MS, 60, COMPUTE, 0.1)
    second = K(MS, 80, COMPUTE, 0.1)
    result = simulate(
        "streams", client(BEST_EFFORT, [first], requests=1), client(BEST_EFFORT, [second], requests=1)
    )
    assert (ends(result, 0), ends(result, 1)) == ([MS], [MS + MS * 3 // 4])


@pytest.mark.parametrize(("priority", "expected"), [(True, 1 * MS + 10 * US), (False, 2 * MS + 10 * US)])
def test_freed_sms_go_to_latency_kernels_first_where_streams_have_priorities(
    priority: bool, expected: int
) -> None:
    others = [client(BEST_EFFORT, [K(MS)], requests=1) for _ in range(2)]
    result = simulate(
        "streams", *others, client(LATENCY, [K(10 * US)], arrivals=[MS // 2]), priority=priority
    )
    assert ends(result, 2) == [expected]


def test_a_copy_takes_no_sms() -> None:
    copy = K(MS, 0, COPY, 0.0, 0.0)
    result = simulate(
        "streams", client(BEST_EFFORT, [K(MS)], requests=1), client(BEST_EFFORT, [copy], requests=1)
    )
    assert result["ended"] == MS


def test_in_one_interpreter_launches_take_turns() -> None:
    def both(**how: Any) -> int:
        clients = [client(BEST_EFFORT, [small(1)] * 10, requests=1, gap=10 * US) for _ in range(2)]
        return int(simulate("streams", *clients, **how)["ended"])

    assert both() == 100 * US + 1
    assert both(one_interpreter=True) == 200 * US + 1


def test_a_client_that_does_not_wait_launches_ahead_as_far_as_the_queue_goes() -> None:
    free = client(BEST_EFFORT, [K(100 * US)] * 4, synchronize=False, ahead=6)
    result = simulate("streams", free, until=50 * US)
    assert result["clients"][0]["launches"] == 6
    assert (
        simulate("streams", client(BEST_EFFORT, [K(100 * US)] * 4), until=50 * US)["clients"][0]["launches"]
        == 4
    )


def test_use_of_the_gpu_is_that_of_what_ran() -> None:
    result = simulate("streams", client(LATENCY, [K(MS, 40, COMPUTE, 0.3, 0.2)], requests=1), until=2 * MS)
    assert result["usage"] == pytest.approx({"sms": 0.25, "compute": 0.15, "memory": 0.1})


def test_orions_table_2_comes_out_within_three_per_cent() -> None:
    for pair in table2.run(Effort(quick=True)).data["simulated"].values():
        assert pair["collocated"] == pytest.approx(pair["paper"][1], rel=0.03)


@pytest.mark.parametrize("policy", ["streams", "stream-priority", "mps"])
def test_sharing_without_control_holds_nobody(policy: str) -> None:
    result = simulate(
        policy, client(LATENCY, [K(MS)] * 3, requests=3), client(BEST_EFFORT, [K(MS)] * 3, requests=3)
    )
    assert (held(result, 0), held(result, 1)) == ({}, {})


def test_temporal_one_request_at_a_time_and_latency_requests_first() -> None:
    """The second and third request have come while the first waited: they go before the next iteration."""
    training = client(BEST_EFFORT, [small(MS)] * 4, requests=2)
    serving = client(LATENCY, [small(MS)], arrivals=[MS, MS, 2 * MS], gap=10 * US)
    result = simulate("temporal", serving, training)
    assert ends(result, 0) == [5 * MS, 6 * MS + 10 * US, 7 * MS + 20 * US]
    assert ends(result, 1) == [4 * MS, 11 * MS + 20 * US]
    assert held(result, 0) == held(result, 1) == {"turn": 1}


def test_kernel_temporal_holds_best_effort_while_latency_work_runs() -> None:
    serving = client(LATENCY, [small(MS)], arrivals=[500 * US])
    result = simulate(
        "kernel-temporal", serving, client(BEST_EFFORT, [small(MS, MEMORY)] * 3, requests=1, ahead=1)
    )
    assert ends(result, 0) == [1500 * US]  # what was in flight ran on beside it
    assert held(result, 1) == {"latency": 1}
    assert ends(result, 1) == [3500 * US]
    assert result["clients"][1]["held_ns"] == 500 * US


def test_a_held_launch_goes_on_after_the_end_was_seen_and_the_thread_woke() -> None:
    serving = client(LATENCY, [small(MS)], arrivals=[0])
    result = simulate(
        "kernel-temporal", serving, client(BEST_EFFORT, [small(MS)], requests=1), seen=30, relaunch=7
    )
    assert ends(result, 1) == [MS + 30 + 7 + MS + 30]


def test_reef_bounds_the_kernels_in_flight() -> None:
    result = simulate(knobs("reef-n", depth=3), client(BEST_EFFORT, [K(MS)] * 10, requests=1), until=MS // 2)
    assert result["clients"][0]["launches"] == 3
    assert held(result, 0) == {"drain": 1}


@pytest.mark.parametrize(
    ("kernel", "beside"),
    [
        (small(MS // 2, sms=40), True),
        (small(MS // 2, sms=41), False),  # does not fit into the SMs left free
        (small(2 * MS, sms=40), False),  # outlasts the latency kernel
    ],
)
def test_reef_pads_with_what_fits_and_does_not_outlast(kernel: K, beside: bool) -> None:
    serving = client(LATENCY, [small(MS, sms=40)], arrivals=[0])
    result = simulate("reef-n", serving, client(BEST_EFFORT, [kernel], requests=1))
    assert held(result, 1) == ({} if beside else {"latency": 1})
    assert (result["clients"][1]["begin"][0] == 0) == beside


@pytest.mark.parametrize(
    ("kernel", "beside"),
    [
        (small(MS // 2, MEMORY), True),
        (small(MS // 2, UNKNOWN), True),
        (small(MS // 2, COMPUTE), False),  # the same profile
        (small(MS // 2, MEMORY, sms=SMS), False),  # too large
    ],
)
def test_orion_lets_small_kernels_of_another_profile_run_beside(kernel: K, beside: bool) -> None:
    serving = client(LATENCY, [small(MS, COMPUTE)], arrivals=[0])
    result = simulate("orion", serving, client(BEST_EFFORT, [kernel], requests=1))
    assert held(result, 1) == ({} if beside else {"latency": 1})


def test_orion_bounds_the_time_in_flight_by_a_share_of_the_latency() -> None:
    """2.5 % of 4 ms are 100 us: a launch goes unless more than that is in flight already."""
    chosen = knobs("orion", latency=4 * MS, duration_fraction=0.025)
    result = simulate(chosen, client(BEST_EFFORT, [small(40 * US)] * 20, requests=1), until=20 * US)
    assert result["clients"][0]["launches"] == 3
    assert held(result, 0) == {"drain": 1}


def test_orion_serves_several_best_effort_clients_in_turn() -> None:
    others = [client(BEST_EFFORT, [small(40 * US)]) for _ in range(3)]
    result = simulate(knobs("orion", latency=100 * US, duration_fraction=0.1), *others, until=12 * MS - 1)
    launched = [outcome["launches"] for outcome in result["clients"]]
    assert sum(launched) == 300
    assert max(launched) - min(launched) <= 1


def test_orion_searches_a_lower_threshold_when_the_latency_client_suffers() -> None:
    """Kernels of another profile that both want all the bandwidth: beside each other they take twice as long.
    After ten iterations it looks how long they took."""
    first = K(MS, 40, COMPUTE, 0.1, 0.9)
    other = K(50 * US, 40, MEMORY, 0.1, 0.9)

    def searched(limit: float) -> tuple[int, list[int]]:
        serving = client(LATENCY, [first] * 4, requests=19)
        training = client(BEST_EFFORT, [other] * 4)
        chosen = knobs("orion", latency=4 * MS, duration_fraction=0.0125)
        result = simulate(chosen, serving, training, until=200 * MS, search_limit=limit)
        return result["knobs"].sm_threshold, np.diff(ends(result, 0)).tolist()

    threshold, took = searched(0.05)
    assert 20 <= threshold <= 21  # halfway from 0 to what fits everything
    assert max(took[10:]) < 4.1 * MS < 6 * MS < min(took[:9])
    assert searched(2.0)[0] == 41


IN_ONE_PROCESS = {"one_interpreter": True}  # threads that cannot stop at fences


def test_astrarium_bounds_what_is_in_flight_before_a_request() -> None:
    serving = client(LATENCY, [small(MS)], arrivals=[MS])
    training = client(BEST_EFFORT, [small(40 * US)] * 20, requests=1)
    chosen = knobs("astrarium", window=100 * US)
    result = simulate(chosen, serving, training, until=20 * US, **IN_ONE_PROCESS)
    assert result["clients"][1]["launches"] == 2
    assert held(result, 1) == {"drain": 1}


def test_astrarium_spends_the_allowance_and_no_more() -> None:
    """5 % of 10 ms are 500 us of delay; at half a ns a ns, one ms of best-effort work beside a request."""
    chosen = knobs("astrarium", latency=10 * MS, allowance=0.05, window=10 * MS, harm=[0.5] * 5)
    serving = client(LATENCY, [small(10 * MS, sms=1)], arrivals=[0])
    result = simulate(
        chosen,
        serving,
        client(BEST_EFFORT, [small(100 * US, MEMORY)] * 20, requests=1),
        until=9 * MS,
        **IN_ONE_PROCESS,
    )
    assert result["clients"][1]["launches"] == 10
    assert held(result, 1) == {"latency": 1}


def test_astrarium_holds_what_it_does_not_know_while_latency_work_runs() -> None:
    serving = client(LATENCY, [small(MS)], arrivals=[0])
    result = simulate(
        "astrarium", serving, client(BEST_EFFORT, [small(0), small(MS)], requests=1), **IN_ONE_PROCESS
    )
    assert held(result, 1) == {"unknown": 1}
    assert result["clients"][1]["begin"].tolist() == [MS]


def test_astrarium_learns_from_a_request_what_the_learning_code_says() -> None:
    """100 us were in flight when the request came; 200 us of memory kernels were launched beside it."""
    chosen = knobs("astrarium", latency=MS, allowance=1.0, window=10 * MS)
    serving = client(LATENCY, [K(MS, SMS, COMPUTE, 0.5)], arrivals=[50 * US])
    training = client(
        BEST_EFFORT, [K(100 * US, SMS, COMPUTE), *[small(100 * US, MEMORY)] * 2], requests=1, ahead=1
    )
    result = simulate(chosen, serving, training, **IN_ONE_PROCESS)
    took = ends(result, 0)[0] - 50 * US
    assert took == MS + 50 * US  # it waited for the kernel that was there
    expected = knobs("astrarium", latency=MS, allowance=1.0, window=10 * MS)
    sums = [0, 0, 200 * US, 0, 100 * US]
    expected.latency = gate.learn_alone(MS, took, sums)
    gate.learn_harm(expected, took, sums)
    assert list(result["knobs"].harm) == list(expected.harm) != list(chosen.harm)
    assert result["knobs"].latency == expected.latency
    assert simulate(chosen, serving, training, learn=False, **IN_ONE_PROCESS)["knobs"].harm == chosen.harm


def test_astrarium_launches_ahead_between_processes_and_the_gpu_stops_at_fences() -> None:
    """The third kernel has a fence before it. The first was there, and the second comes after the request."""
    chosen = knobs("astrarium", window=100 * US)
    serving = client(LATENCY, [K(MS)], arrivals=[10 * US])
    result = simulate(chosen, serving, client(BEST_EFFORT, [K(50 * US)] * 20, requests=1))
    assert held(result, 1) == {}
    assert result["clients"][1]["launches"] == 20
    assert ends(result, 0) == [50 * US + MS]
    assert ends(result, 1) == [2 * MS]


def test_fences_open_when_the_gpu_is_through_with_a_request_not_when_its_client_knows() -> None:
    serving = client(LATENCY, [K(MS)], arrivals=[0])
    training = client(BEST_EFFORT, [K(MS)], requests=1)
    result = simulate(knobs("astrarium", window=1), serving, training, seen=300 * US)
    assert ends(result, 1) == [2 * MS + 300 * US]


def test_an_open_fence_holds_the_stream_up_for_what_it_costs() -> None:
    """Every kernel has a fence before it."""
    training = client(BEST_EFFORT, [K(100 * US)] * 5, requests=1)
    result = simulate(knobs("astrarium", window=1), training, fence=3 * US)
    assert ends(result, 0) == [5 * (100 + 3) * US]
    assert ends(simulate("orion", training, fence=3 * US), 0) == [500 * US]


def test_a_stream_that_has_passed_a_fence_goes_on() -> None:
    """The request comes while the fence is being read: the next one stops it."""
    serving = client(LATENCY, [small(MS)], arrivals=[2 * US])
    short, long = (client(BEST_EFFORT, [small(100 * US)] * count, requests=1) for count in (1, 2))
    chosen = knobs("astrarium", window=1)
    assert ends(simulate(chosen, serving, short, fence=10 * US), 1) == [110 * US]
    assert ends(simulate(chosen, serving, long, fence=10 * US), 1) == [2 * US + MS + 110 * US]


def test_tick_tock_runs_the_forward_of_one_beside_the_backward_of_the_other() -> None:
    """Phases of 1 ms of the first job, of 3 ms of the second: each waits for the other at every boundary."""
    first = client(LATENCY, [small(MS), small(MS)._replace(phase=1)], requests=3)
    second = client(BEST_EFFORT, [small(3 * MS, MEMORY), small(3 * MS, MEMORY)._replace(phase=1)], requests=3)
    result = simulate("tick-tock", first, second)
    assert result["clients"][1]["begin"].tolist() == [MS, 7 * MS, 13 * MS]
    assert ends(result, 0) == [2 * MS, 8 * MS, 14 * MS]
    assert ends(result, 1) == [7 * MS, 13 * MS, 19 * MS]


def mixed(random: np.random.Generator, count: int) -> list[K]:
    return [
        K(
            duration=int(random.integers(1, 200)) * US,
            sms=int(random.integers(1, SMS + 1)),
            kind=int(random.integers(0, 3)),
            compute=float(random.random()),
            memory=float(random.random()),
            phase=int(place >= count // 2),
        )
        for place in range(count)
    ]


def crowd(seed: int) -> list[gate.Client]:
    random = np.random.default_rng(seed)
    arrivals = np.sort(random.integers(0, 40 * MS, 12)).tolist()
    return [
        client(LATENCY, mixed(random, 9), arrivals=arrivals, gap=5 * US),
        client(BEST_EFFORT, mixed(random, 14), requests=12, gap=2 * US),
        client(BEST_EFFORT, mixed(random, 5), requests=12, graph=True, synchronize=False),
        client(BEST_EFFORT, mixed(random, 7), requests=12, synchronize=False, ahead=4),
    ]


KERNELS = (9, 14, 5, 7)


@pytest.mark.parametrize("policy", gate.policy_names())
@pytest.mark.parametrize("seed", [1, 2])
def test_every_kernel_of_every_client_ends_exactly_once(policy: str, seed: int) -> None:
    result = simulate(policy, *crowd(seed), seen=3 * US, relaunch=2 * US)
    for outcome, count in zip(result["clients"], KERNELS, strict=True):
        assert outcome["kernels"] == 12 * count
        assert len(outcome["end"]) == 12
        assert (np.diff(outcome["end"]) > 0).all()
        assert (outcome["arrival"] <= outcome["begin"]).all()
        assert (outcome["begin"] < outcome["end"]).all()
    assert all(0 < share <= 1 for share in result["usage"].values())


@pytest.mark.parametrize("policy", gate.policy_names())
def test_the_same_clients_give_the_same_run(policy: str) -> None:
    first, second = (simulate(policy, *crowd(3), seen=3 * US, relaunch=2 * US) for _ in range(2))
    for outcome, again in zip(first["clients"], second["clients"], strict=True):
        assert all((outcome[name] == again[name]).all() for name in ("arrival", "begin", "end"))
        assert (outcome["held"], outcome["held_ns"]) == (again["held"], again["held_ns"])
    assert first["usage"] == second["usage"]


def test_no_request_is_faster_than_alone() -> None:
    kernels = mixed(np.random.default_rng(5), 20)
    alone = sum(kernel.duration for kernel in kernels)
    for policy in gate.policy_names():
        result = simulate(policy, client(LATENCY, kernels, arrivals=[0, MS, 9 * MS]), *crowd(6)[1:])
        assert (result["clients"][0]["end"] - result["clients"][0]["begin"] >= alone - len(kernels)).all()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({}, "time to stop"),
        ({"requests": 1, "gap": -1}, "gap"),
        ({"requests": 1, "between": -1}, "between"),
        ({"arrivals": [2, 1]}, "in order"),
        ({"requests": 1, "ahead": 0}, "ahead"),
    ],
)
def test_what_cannot_be_simulated_is_refused(how: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulate("streams", client(LATENCY, [K(US)], **how))


@pytest.mark.parametrize(
    ("kernel", "words"),
    [(K(US, compute=1.5), "use"), (K(0), "take time"), (K(US, kind=4), "kind"), (K(-1), "below 0")],
)
def test_kernels_that_cannot_be_are_refused(kernel: K, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        simulate("streams", client(LATENCY, [kernel], requests=1))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="no policy of the gate: orian"):
        gate.defaults("orian", SMS)
