"""The workloads and the clients of the GPU benchmarks, on the CPU: what they are, how they count."""

from __future__ import annotations

import io
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

torch = pytest.importorskip("torch")
GPU_BENCHMARKS = ROOT / "benchmarks" / "gpu"
sys.path.append(str(GPU_BENCHMARKS))

from clients import parser, set_up  # noqa: E402
from clients_device import Clock, obey, read_order  # noqa: E402
from clients_loops import Inference, Loop, LoopWindow, Training, counted, progress  # noqa: E402
from clients_serve import Server, ServeWindow, arrivals, closed, offer, percentile, read_trace  # noqa: E402  # noqa: E402
from models import NAMES, Workload, build  # noqa: E402

# Millions of parameters as their papers and the usual libraries count them; those of our own shapes added up.
MILLIONS = {
    "resnet18": 11.690,
    "resnet50": 25.557,
    "resnet101": 44.549,
    "resnet152": 60.193,
    "mobilenet_v2": 3.505,
    "vgg11": 132.863,
    "vgg16": 138.358,
    "vgg19": 143.667,
    "alexnet": 61.101,
    "googlenet": 6.625,  # without its auxiliary heads
    "densenet121": 7.979,
    "squeezenet": 1.235,
    "bert_base": 109.482 + 0.002,  # with a classifier of two classes
    "transformer": ((32000 + 192) * 512 + 6 * (4 * 513 * 512 + 513 * 2048 + 2049 * 512 + 4 * 512)) / 1e6,
    "seq2seq": (2 * 10000 * 512 + 4 * 4 * 512 * (1024 + 2) + 1025 * 512 + 513 * 10000) / 1e6,
    "superres": (26 * 64 + 577 * 64 + 577 * 32 + 289 * 9) / 1e6,
    "vae": (785 * 400 + 2 * 401 * 20 + 21 * 400 + 401 * 784) / 1e6,
    "tiny": (28 * 8 + 16 + 9 * 10) / 1e6,
}


def parameters(work: Workload) -> int:
    return sum(part.numel() for part in work.module("meta").parameters())


def test_every_workload_has_a_count_to_be_held_against() -> None:
    assert set(NAMES) == MILLIONS.keys()


@pytest.mark.parametrize("name", NAMES)
def test_the_network_is_the_well_known_one(name: str) -> None:
    assert parameters(build(name)) / 1e6 == pytest.approx(MILLIONS[name], abs=0.0006)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_training_reaches_every_parameter(name: str) -> None:
    work = build(name)
    module = work.module("meta")
    batch = work.batch(2, "meta")
    loss = work.loss(module(*batch.inputs), batch.targets)
    assert loss.shape == ()
    loss.backward()
    assert [label for label, part in module.named_parameters() if part.grad is None] == []


def test_the_same_seed_gives_the_same_weights_and_data_and_leaves_the_world_alone() -> None:
    work = build("tiny")
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    modules: list[Any] = [work.module(seed=seed) for seed in (1, 1, 2)]
    weights = [module[0].weight for module in modules]
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(work.batch(3).inputs[0], work.batch(3).inputs[0])


def test_an_unknown_model_is_refused_with_a_hint() -> None:
    with pytest.raises(ValueError, match="did you mean 'resnet50'"):
        build("resnet05")
    with pytest.raises(ValueError, match="batch size"):
        build("tiny").batch(0)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"arrivals_ms": {"camera": [0, 10, 40], "radar": [20, 100]}}))
    return path


def test_a_trace_is_one_of_its_streams_or_all_of_them(trace: Path) -> None:
    assert read_trace(trace) == [0, 10, 20, 40, 100]
    assert read_trace(trace, "camera") == [0, 10, 40]
    with pytest.raises(ValueError, match="camera, radar"):
        read_trace(trace, "lidar")
    trace.write_text('{"arrivals_ms": [7, 3, 5]}')
    assert read_trace(trace) == [3, 5, 7]
    trace.write_text("{}")
    with pytest.raises(ValueError, match="arrivals_ms"):
        read_trace(trace)


def test_a_trace_is_looped_and_scaled_to_the_rate_that_is_wanted() -> None:
    times = arrivals("apollo", rate=100, seconds=10, seed=3, trace=[0, 10, 20, 40, 100])
    gaps = [after - before for before, after in pairwise(times)]
    assert len(times) == pytest.approx(1000, abs=4)  # the gaps have a mean of 25 ms, and become 10
    assert gaps[:4] == pytest.approx(gaps[4:8], abs=2)
    assert sorted(gaps[:4]) == pytest.approx([4e6, 4e6, 8e6, 24e6], abs=2)


@pytest.mark.parametrize("kind", ["poisson", "uniform"])
def test_drawn_arrivals_repeat_with_their_seed_and_keep_their_rate(kind: str) -> None:
    times = arrivals(kind, rate=50, seconds=40, seed=1, trace=None)
    assert times == sorted(times)
    assert times == arrivals(kind, rate=50, seconds=40, seed=1, trace=None)
    assert times != arrivals(kind, rate=50, seconds=40, seed=2, trace=None)
    assert len(times) == pytest.approx(2000, rel=0.08)
    assert times[-1] < 40e9


def test_arrivals_that_cannot_be_are_refused() -> None:
    for kind, rate in (("weekly", 1.0), ("poisson", 0.0), ("apollo", 1.0)):
        with pytest.raises(ValueError, match=r"expected|needs"):
            arrivals(kind, rate, 1.0, 0, None)


class FakeClock(Clock):
    def __init__(self) -> None:
        self.time = 0

    def now(self) -> int:
        return self.time

    def wait_until(self, moment: int) -> None:
        self.time = max(self.time, moment)

    def work(self) -> None:
        """A request takes ten."""
        self.time += 10


def test_a_request_that_finds_the_server_at_work_waits_and_its_wait_counts() -> None:
    clock = FakeClock()
    served = offer([0, 4, 8, 100], start=1000, give_up=9999, respond=clock.work, clock=clock)
    assert served.latencies == [10, 16, 22, 10]
    assert served.services == [10] * 4
    assert served.unserved == 0


def test_requests_given_up_count_with_what_they_waited_so_far() -> None:
    clock = FakeClock()
    served = offer([0, 1, 2, 3], start=0, give_up=20, respond=clock.work, clock=clock)
    assert (served.unserved, served.latencies) == (2, [10, 19, 18, 17])
    assert len(served.services) == 2


def test_a_closed_loop_has_no_queue() -> None:
    clock = FakeClock()
    assert closed(start=5, end=36, respond=clock.work, clock=clock).latencies == [10] * 4


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50, 99, 100]
    assert percentile([7.0], 0.5) == 7


def test_progress_counts_the_iteration_under_way_in_part() -> None:
    ends = [100, 200, 400]  # the first began at 100
    assert [progress(ends, moment) for moment in (50, 100, 150, 300, 400, 900)] == [0, 0, 0.5, 1.5, 2, 2]
    of = counted(ends, start=150, stop=350)
    assert of["iterations"] == pytest.approx(1.25)
    assert of["per_second"] == pytest.approx(1.25e9 / 200)
    assert (of["count"], of["max_ms"]) == (1, 100 / 1e6)


def test_orders_are_read_with_the_types_of_their_windows() -> None:
    assert read_order(ServeWindow, ["2", "rate=5", "seed=3"]) == ServeWindow(seconds=2.0, rate=5.0, seed=3)
    assert read_order(LoopWindow, ["1", "at=7"]) == LoopWindow(seconds=1.0, at=7)
    for words in ([], ["x"], ["-1"], ["1", "rate=5"], ["1", "lead=soon"]):
        with pytest.raises(ValueError, match="expected"):
            read_order(LoopWindow, words)


def test_a_bad_order_is_answered_and_the_next_one_obeyed() -> None:
    output = io.StringIO()
    obey(io.StringIO("dance\ngo 1\nquit\ngo 2\n"), output, {"go": lambda words: {"words": words}}, {"a": 1})
    ready, refused, done = output.getvalue().splitlines()
    assert ready == 'ready {"a": 1}'
    assert "go, quit" in json.loads(refused)["error"]
    assert json.loads(done) == {"words": ["1"]}


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def options(*words: str) -> Namespace:
    read_ = parser().parse_args([*words, "--device", "cpu"])
    set_up(read_)
    return read_


def in_order(outcome: dict[str, Any]) -> bool:
    return bool(outcome["p50_ms"] <= outcome["p95_ms"] <= outcome["p99_ms"] <= outcome["max_ms"])


@pytest.mark.usefixtures("threads")
def test_a_server_answers_every_request_of_its_window(trace: Path) -> None:
    server = Server(options("serve", "tiny", "--batch", "2", "--trace", str(trace)))
    for kind in ("poisson", "apollo"):
        done = server.go(["0.2", "rate=100", f"arrivals={kind}", "seed=4"])
        requests = arrivals(kind, 100, 0.2, 4, read_trace(trace))
        assert done["count"] + done["unserved"] == len(requests) > 0
        assert in_order(done)
    with pytest.raises(ValueError, match="no request"):
        server.go(["0.001", "rate=0.001"])


@pytest.mark.usefixtures("threads")
def test_a_server_turns_a_share_of_its_time_into_a_rate() -> None:
    server = Server(options("serve", "tiny", "--batch", "1"))
    service_ms = server.calibrate([])["service_ms"]
    assert server.go(["0.05", "busy=0.25"])["rate"] == pytest.approx(0.25 * 1000 / service_ms)
    for words in (["1"], ["1", "rate=5", "busy=0.5"]):
        with pytest.raises(ValueError, match="either rate"):
            server.go(words)


@pytest.mark.usefixtures("threads")
def test_a_closed_server_is_always_busy_and_needs_no_rate() -> None:
    done = Server(options("serve", "tiny", "--closed")).go(["0.05"])
    assert (done["arrivals"], done["rate"], done["unserved"]) == ("closed", 0, 0)
    assert done["count"] >= 1
    assert done["p50_ms"] <= done["p99_ms"]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_training_trains(optimizer: str) -> None:
    body = Training(build("tiny"), options("train", "tiny", "--feed", "host", "--optimizer", optimizer))
    losses = [body.step().item() for _ in range(40)]
    assert losses[-1] < losses[0]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("kind", "body"), [("train", Training), ("infer", Inference)])
def test_a_loop_counts_the_iterations_of_its_window(kind: str, body: Any) -> None:
    loop = Loop(body, options(kind, "tiny", "--batch", "2"))
    done = loop.go(["0.1", "lead=0.02", "tail=0.02"])
    assert done["kind"] == kind
    assert done["per_second"] == pytest.approx(done["iterations"] / 0.1)
    assert abs(done["iterations"] - done["count"]) < 1 + 1e-6
    assert done["iterations"] > 0
