"""Lanes on a real GPU: the numbers of plain loops, memory that is shared and found again, failures that stay
alone.

PYTHONPATH=src python3 -m pytest -m gpu --confcutdir=tests/gpu -s tests/gpu/test_lanes.py
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from astrarium.device.ledger import Outcome
from astrarium.device.live.backend import Needs
from astrarium.device.live.charges import MEASURED
from astrarium.device.live.errors import JobEnded, MemoryWarning

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

from torch import nn  # noqa: E402

from astrarium.device.live.torch_backend import TorchGpu, TorchLaneBackend  # noqa: E402
from astrarium.device.live.torch_pool_view import viewed  # noqa: E402

PATIENCE = 120.0
MIB = 1 << 20


class Loop:
    """A training loop as people write it; `after` zeroes gradients after the step instead of before."""

    def __init__(self, seed: int = 0, width: int = 1024, after: bool = False) -> None:
        torch.manual_seed(seed)
        layers = [
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        ]
        self.model = nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batch = torch.randn(4096, width, device="cuda")
        self.kept: list[Any] = []
        self._after = after

    def step(self, keep: Callable[[Any, Any], None] | None = None) -> float:
        if not self._after:
            self.optimizer.zero_grad()
        output = self.model(self.batch)
        loss = output.square().mean()
        loss.backward()
        self.optimizer.step()
        if self._after:
            self.optimizer.zero_grad()
        if keep is not None:
            keep(output, loss)
        return float(loss.item())


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No pool keeps memory that nobody uses. (Workspaces of threads stay with their libraries, in use.)"""
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - torch.cuda.memory_allocated() < 256 * MIB


def together(*work: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(work)) as threads:
        return [done.result(PATIENCE) for done in [threads.submit(job) for job in work]]


def trained(gpu: TorchGpu, loop: Loop, name: str, count: int) -> list[float]:
    with gpu.attached(name, loop.model, loop.optimizer, iterations=count):
        return [loop.step() for _ in range(count)]


def test_two_jobs_that_share_a_lane_learn_what_each_learns_alone() -> None:
    alone = [[loop.step() for _ in range(30)] for loop in (Loop(1), Loop(2, 1536))]
    gpu = TorchGpu("fair")
    loops = (Loop(1), Loop(2, 1536))
    losses = together(*(lambda n=n: trained(gpu, loops[n], f"job{n}", 30) for n in range(2)))
    for plain, shared in zip(alone, losses, strict=True):
        assert shared == pytest.approx(plain, rel=1e-3)
        assert shared[-1] < 0.9 * shared[0]
    assert [row.outcome for row in gpu.rows()] == [Outcome.FINISHED] * 2
    assert any(row.switches for row in gpu.rows())


@pytest.mark.parametrize("after", [False, True])
def test_an_ordinary_loop_raises_no_alarm_and_stays_in_its_lane(after: bool) -> None:
    """Backward included: a pool that grew would be told."""
    gpu = TorchGpu("fair")
    with warnings.catch_warnings():
        warnings.simplefilter("error", MemoryWarning)
        for _ in range(2):
            trained(gpu, Loop(after=after), "ordinary", 40)
    assert [row.outcome for row in gpu.rows()] == [Outcome.FINISHED] * 2


def test_the_libraries_workspaces_do_not_lie_in_the_lane() -> None:
    backend = TorchLaneBackend()
    model = nn.Linear(512, 512).cuda().eval()
    batch = torch.randn(64, 512, device="cuda")
    gpu = TorchGpu("fair", backend)
    with torch.no_grad(), gpu.attached("inference", model):
        for _ in range(MEASURED + 3):
            model(batch)
        torch.cuda.synchronize()
        [lane] = backend.pools.lanes.values()
        assert viewed(lane.pool.snapshot()).blocks == []


def test_a_leak_is_named_with_where_it_was_made() -> None:
    gpu = TorchGpu("fair")
    loop = Loop()

    def leak() -> None:
        with gpu.attached("leaky", loop.model, loop.optimizer):
            for _ in range(40):
                loop.step(lambda output, loss: loop.kept.append(output))

    torch.cuda.memory._record_memory_history(stacks="python")
    try:
        with pytest.warns(MemoryWarning, match=r"job leaky: .* outlive its iterations") as warned:
            leak()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    leaks = [str(warning.message) for warning in warned if "outlive" in str(warning.message)]
    print("\n" + leaks[0])
    assert len(leaks) == 1
    assert "test_lanes.py:" in leaks[0]


def test_what_leaks_is_charged_to_the_job() -> None:
    gpu = TorchGpu("fair")
    loop = Loop()

    def leak() -> int:
        with gpu.job("leaky") as job:
            for number in range(MEASURED + 17):
                with job.iteration():
                    loop.step()
                    if number > MEASURED:
                        loop.kept.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))
            return gpu.rows()[0].job.persistent

    with pytest.warns(MemoryWarning, match="outlive"):
        persistent = leak()
    assert persistent >= 15 * 64 * MIB


def test_out_of_memory_is_one_jobs_error_and_the_lane_goes_on() -> None:
    gpu = TorchGpu("fair")
    modest = Loop(1)
    greedy = Loop(2)
    free, _ = torch.cuda.mem_get_info()
    kept: list[BaseException] = []

    def fails() -> None:
        try:
            with gpu.attached("greedy", greedy.model, greedy.optimizer):
                for number in range(20):
                    output = greedy.model(greedy.batch)
                    if number == 10:
                        hoard = [torch.empty(free // 4, dtype=torch.uint8, device="cuda") for _ in range(8)]
                        del hoard
                    output.square().mean().backward()
                    greedy.optimizer.step()
        except torch.OutOfMemoryError as error:
            kept.append(error)

    _, losses = together(fails, lambda: trained(gpu, modest, "modest", 60))
    assert len(losses) == 60
    rows = {row.job.name: row for row in gpu.rows()}
    assert rows["modest"].outcome is Outcome.FINISHED
    assert rows["greedy"].outcome is Outcome.FAILED
    assert "OutOfMemoryError" in rows["greedy"].reason
    assert "in a lane of" in rows["greedy"].reason
    print("\n" + rows["greedy"].reason)
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] > 0.8 * free, "the error is kept, and its memory is not"


@pytest.mark.filterwarnings("ignore::astrarium.device.live.errors.MemoryWarning")
def test_a_job_that_outgrows_the_gpus_books_ends_with_what_it_took() -> None:
    backend = TorchLaneBackend()
    gpu = TorchGpu("fair", backend)
    loop = Loop()
    gpu._driver._state.layout.capacity = torch.cuda.memory_allocated() + 1024 * MIB

    def step(more: int) -> None:
        with job.iteration():
            loop.step()
            torch.empty(more or 1, dtype=torch.uint8, device="cuda")

    with gpu.job("growing") as job:
        for _ in range(MEASURED + 3):
            step(0)
        with pytest.raises(JobEnded, match="it needs more than was known of it"):
            step(4096 * MIB)
    [row] = gpu.rows()
    print("\n" + row.reason)


def test_lanes_come_and_go_while_others_are_inside_theirs() -> None:
    """A pool that ends while a thread is inside one ends the process, so that passing is not crashing."""
    gpu = TorchGpu("pack")
    rounds = 12
    long = Loop(0, 512)

    def short(number: int) -> int:
        done = 0
        for round_ in range(rounds):
            loop = Loop(number, 256 + 64 * ((number + round_) % 5))
            with gpu.attached(f"short {number}.{round_}", loop.model, loop.optimizer):
                for _ in range(MEASURED + 4):
                    loop.step()
                    done += 1
        return done

    counts = together(lambda: len(trained(gpu, long, "long", 400)), *(lambda n=n: short(n) for n in range(4)))
    assert counts == [400, *[rounds * (MEASURED + 4)] * 4]
    assert not gpu.backend.pools.given_up  # type: ignore[attr-defined]
    assert not gpu.backend.pools.lanes  # type: ignore[attr-defined]


def test_a_lane_changes_its_size_with_its_jobs() -> None:
    backend = TorchLaneBackend()
    gpu = TorchGpu("fair", backend)
    small = Loop(0, 256)
    with gpu.attached("small", small.model, small.optimizer):
        for _ in range(MEASURED + 2):
            small.step()
        sizes = [lane.size for lane in backend.pools.lanes.values()]
        together(lambda: trained(gpu, Loop(1, 2048), "large", MEASURED + 5))
        for _ in range(3):
            small.step()
        (after,) = (lane.size for lane in backend.pools.lanes.values())
        assert after < 1.5 * sizes[0]  # a little more than it had, where an iteration took a little more
    # each lane had a pool of one segment, and the large one is gone
    assert not backend.pools.given_up


def test_a_lane_grows_though_somebodys_gradients_lie_in_it() -> None:
    """They hold all of its segment: a pool for the large one beside it would not fit into the GPU."""
    gpu = TorchGpu("fair")
    go = threading.Event()
    back = threading.Event()
    capacity = gpu.backend.capacity
    model = nn.Linear(2048, 2048).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(64, 2048, device="cuda")

    def small() -> None:
        with gpu.job("small", Needs(64 * MIB, int(0.55 * capacity), 1), 2) as job:
            for number in range(2):
                with job.iteration():
                    optimizer.zero_grad()
                    model(batch).sum().backward()
                    optimizer.step()
                if not number:
                    go.set()
                    assert back.wait(PATIENCE)

    def large() -> None:
        assert go.wait(PATIENCE)
        try:
            with gpu.job("large", Needs(MIB, int(0.65 * capacity), 1), 1) as job, job.iteration():
                torch.empty(int(0.5 * capacity), dtype=torch.uint8, device="cuda")
        finally:
            back.set()

    together(small, large)
    assert {row.job.name: row.outcome for row in gpu.rows()} == {
        "small": Outcome.FINISHED,
        "large": Outcome.FINISHED,
    }


def test_results_read_after_the_turn_are_not_overwritten_by_another_job() -> None:
    """Each reads its output late, in its own time, and lets it go while that is still under way."""
    gpu = TorchGpu("fair")
    totals = dict[int, list[float]]()
    width = 4 * MIB

    class Fill(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def forward(self, batch: Any) -> Any:
            return torch.full_like(batch, float(self.number))

    def serve(number: int) -> None:
        model = Fill(number).eval()
        batch = torch.empty(width, device="cuda")
        with torch.no_grad(), gpu.attached(f"model {number}", model, needs=Needs(MIB, 256 * MIB, 1)):
            sums = []
            for _ in range(200):
                output = model(batch)
                torch.cuda._sleep(200_000)
                sums.append(output.mean(dtype=torch.float64))
                del output
            totals[number] = [total.item() for total in sums]

    together(lambda: serve(1), lambda: serve(2))
    assert totals == {1: [1.0] * 200, 2: [2.0] * 200}


def test_errors_between_turns_and_in_them_leave_streams_and_pools_as_they_were() -> None:
    gpu = TorchGpu("fair")
    loop = Loop()
    outside = torch.cuda.current_stream()

    def fail(at: int) -> None:
        with gpu.job("fails") as job:
            for number in range(10):
                with job.iteration():
                    loop.step()
                    if number == at:
                        raise ValueError("bad batch")

    for at in (1, MEASURED + 2):
        with pytest.raises(ValueError, match="bad batch"):
            fail(at)
        assert torch.cuda.current_stream() == outside
        assert gpu.backend.pools.inside == 0  # type: ignore[attr-defined]
    torch.cuda.empty_cache()  # would raise inside a pool
