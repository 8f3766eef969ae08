"""Loops as people write them, followed by hooks: what is in a turn, and what is not. No GPU is needed."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from astrarium.core.errors import InputError  # noqa: E402
from astrarium.device.ledger import Outcome  # noqa: E402
from astrarium.device.live.backend import Needs  # noqa: E402
from astrarium.device.live.charges import MEASURED  # noqa: E402
from astrarium.device.live.errors import JobEnded, OutOfTurn  # noqa: E402
from astrarium.device.live.live_job import LiveJob  # noqa: E402
from astrarium.device.live.torch_backend import TorchGpu  # noqa: E402
from astrarium.device.live.torch_hooks import LONG, owned_bytes  # noqa: E402
from astrarium.testing.plain_backend import PlainLaneBackend  # noqa: E402

NEEDS = Needs(5, 40, 1000)


class Net(nn.Module):
    """Notes for each call whether it is the job's turn."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.job: LiveJob | None = None
        self.calls: list[bool] = []
        self.fails = self.interrupted = False

    def forward(self, batch: Tensor, again: int = 0) -> Tensor:
        assert self.job is not None
        self.calls.append(self.job.under_way)
        if self.interrupted:
            raise KeyboardInterrupt
        if self.fails:
            raise MemoryError("no more")
        output: Tensor = self(batch, again - 1) if again else self.layer(batch)
        return output


class Loop:
    """A model, an optimizer and a job that are attached; `turns` are those begun so far."""

    def __init__(self, optimizers: int = 1, needs: Needs | None = NEEDS) -> None:
        self.backend = PlainLaneBackend()
        self.model = Net()
        self.batch = torch.ones(3, 4)
        self.optimizers = [torch.optim.SGD(self.model.parameters(), lr=0.1) for _ in range(optimizers)]
        self.gpu = TorchGpu("fair", self.backend)
        self._block = self.gpu.attached("net", self.model, *self.optimizers, needs=needs)

    def __enter__(self) -> Loop:
        self.job = self.model.job = self._block.__enter__()
        return self

    def __exit__(self, *error: object) -> bool | None:
        return self._block.__exit__(*error)  # type: ignore[arg-type]

    @property
    def turns(self) -> int:
        return len(self.backend.turns)

    @property
    def outcome(self) -> tuple[Outcome, str, int]:
        [row] = self.gpu.rows()
        return row.outcome, row.reason, row.done

    def step(self, optimizer: int = 0) -> None:
        self.optimizers[optimizer].step()

    def backward(self) -> None:
        self.model(self.batch).sum().backward()


@pytest.fixture
def loop() -> Iterator[Loop]:
    with Loop() as attached:
        yield attached


def test_a_training_iteration_is_from_the_forward_to_the_end_of_the_step(loop: Loop) -> None:
    for done in range(3):
        assert not loop.job.under_way
        loop.optimizers[0].zero_grad()
        loop.backward()
        assert loop.job.under_way
        loop.step()
        assert (loop.job.under_way, loop.turns) == (False, done + 1)
    assert loop.model.calls == [True] * 3


def test_gradients_may_be_zeroed_after_the_step(loop: Loop) -> None:
    for _ in range(3):
        loop.backward()
        loop.step()
        loop.optimizers[0].zero_grad()
    assert (loop.turns, loop.job.under_way) == (3, False)


def test_the_first_iterations_are_measured() -> None:
    with Loop(needs=None) as loop:
        for _ in range(MEASURED + 2):
            loop.backward()
            loop.step()
    [row] = loop.gpu.rows()
    assert (row.done, loop.turns) == (MEASURED + 2, 2)
    assert (row.job.persistent, row.job.ephemeral) == (5, 40)


def test_an_evaluation_is_a_turn_for_each_call(loop: Loop) -> None:
    loop.backward()
    loop.step()
    loop.model.eval()
    with torch.no_grad():
        for done in range(2):
            loop.model(loop.batch)
            assert (loop.job.under_way, loop.turns) == (False, done + 2)
    loop.model.train()
    loop.backward()
    assert loop.job.under_way
    loop.step()
    assert loop.turns == 4


@pytest.mark.parametrize("look", ["eval", "no_grad", "inference"])
def test_each_way_to_evaluate_ends_with_the_call(loop: Loop, look: str) -> None:
    modes: dict[str, Callable[[], object]] = {"no_grad": torch.no_grad, "inference": torch.inference_mode}
    if look == "eval":
        loop.model.eval()
        loop.model(loop.batch)
    else:
        with modes[look]():  # type: ignore[attr-defined]
            loop.model(loop.batch)
    assert (loop.job.under_way, loop.turns) == (False, 1)


def test_an_evaluation_inside_an_iteration_belongs_to_it(loop: Loop) -> None:
    loop.backward()
    with torch.no_grad():
        loop.model(loop.batch)
    assert (loop.job.under_way, loop.turns) == (True, 1)
    loop.step()
    assert not loop.job.under_way


def test_without_an_optimizer_each_call_is_an_iteration() -> None:
    with Loop(optimizers=0) as loop:
        for _ in range(3):
            loop.model(loop.batch)
            assert not loop.job.under_way
    assert loop.turns == 3


def test_gradient_accumulation_is_one_iteration(loop: Loop) -> None:
    for _ in range(4):
        loop.backward()
    loop.step()
    assert (loop.turns, loop.job.under_way) == (1, False)


def test_a_model_may_call_itself() -> None:
    with Loop(optimizers=0) as loop:
        loop.model(loop.batch, again=2)
        assert loop.model.calls == [True] * 3
        assert (loop.turns, loop.job.under_way) == (1, False)


def test_several_optimizers_all_step_in_an_iteration() -> None:
    with Loop(optimizers=2) as loop:
        loop.backward()
        loop.step(0)
        assert loop.job.under_way
        loop.backward()
        loop.step(1)
        assert (loop.turns, loop.job.under_way) == (1, False)


def test_a_closure_runs_in_the_iteration_of_its_step() -> None:
    loop = Loop()
    loop.optimizers = [torch.optim.LBFGS(loop.model.parameters(), max_iter=3)]

    def closure() -> Tensor:
        loop.optimizers[0].zero_grad()
        loss: Tensor = loop.model(loop.batch).square().sum()
        loss.backward()
        return loss

    with loop.gpu.attached("net", loop.model, *loop.optimizers, needs=NEEDS) as job:
        loop.job = loop.model.job = job
        for _ in range(2):
            loop.optimizers[0].step(closure)
            assert not job.under_way
    assert loop.turns == 2
    assert len(loop.model.calls) > 2
    assert all(loop.model.calls)


def test_training_in_evaluation_mode_is_learnt_from_its_first_step(loop: Loop) -> None:
    """Fine-tuning with frozen statistics: the call alone does not tell."""
    loop.model.eval()
    loop.backward()
    loop.step()
    assert loop.turns == 2  # the call, and the step by itself
    loop.backward()
    assert loop.job.under_way
    loop.step()
    assert (loop.turns, loop.job.under_way) == (3, False)


def test_a_step_that_is_skipped_makes_the_iteration_longer(loop: Loop) -> None:
    """As a gradient scaler does after an overflow."""
    loop.backward()
    loop.backward()
    loop.step()
    assert loop.turns == 1


def test_many_calls_without_a_step_are_told_once(loop: Loop) -> None:
    for _ in range(LONG - 1):
        loop.model(loop.batch)
    with pytest.warns(UserWarning, match="job net: 64 calls of its model without a step"):
        loop.model(loop.batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop.model(loop.batch)


def test_an_iteration_under_way_ends_with_the_block() -> None:
    with Loop() as loop:
        loop.backward()
    assert loop.outcome == (Outcome.WITHDRAWN, "its owner wants it no more", 1)
    assert loop.turns == 1


def test_an_error_in_an_iteration_is_the_jobs_end() -> None:
    loop = Loop()
    loop.model.fails = True
    with pytest.raises(MemoryError), loop:
        loop.backward()
    assert loop.outcome == (Outcome.FAILED, "MemoryError: no more", 0)
    assert loop.backend.failed == ["no more"]


def test_an_error_between_iterations_is_the_jobs_end_too() -> None:
    loop = Loop()

    def train() -> None:
        with loop:
            loop.backward()
            loop.step()
            raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        train()
    assert loop.outcome == (Outcome.FAILED, "OSError: no data", 1)


def test_a_server_may_handle_an_error_of_one_request() -> None:
    with Loop(optimizers=0) as loop:
        loop.model.fails = True
        with pytest.raises(MemoryError):
            loop.model(loop.batch)
        assert loop.backend.failed == ["no more"]
        loop.model.fails = False
        loop.model(loop.batch)
        assert (loop.turns, loop.job.under_way) == (2, False)
    assert loop.outcome[0] is Outcome.WITHDRAWN


def test_a_loop_may_handle_an_error_and_try_again(loop: Loop) -> None:
    loop.model.fails = True
    with pytest.raises(MemoryError):
        loop.backward()
    assert loop.job.under_way
    loop.model.fails = False
    loop.backward()
    loop.step()
    assert (loop.turns, loop.job.under_way) == (1, False)


def test_another_thread_has_no_part_in_it(loop: Loop) -> None:
    errors: list[BaseException] = []

    def elsewhere() -> None:
        try:
            loop.model(loop.batch)
        except OutOfTurn as error:
            errors.append(error)

    thread = threading.Thread(target=elsewhere, name="helper")
    thread.start()
    thread.join()
    assert "job net: its model or optimizer is used by the thread 'helper'" in str(errors[0])
    loop.backward()
    assert loop.turns == 1
    loop.step()
    with torch.no_grad():
        for _ in range(2):
            loop.model(loop.batch)
            assert not loop.job.under_way


def interrupt(loop: Loop, again: int = 0) -> None:
    """Ctrl-C in the model, which the loop handles. PyTorch does not tell hooks of it."""
    loop.model.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        loop.model(loop.batch, again)
    loop.model.interrupted = False


def test_a_server_may_go_on_after_ctrl_c() -> None:
    with Loop(optimizers=0) as loop:
        interrupt(loop)
        for done in range(2):
            loop.model(loop.batch, again=2)
            assert (loop.job.under_way, loop.turns) == (False, done + 2)
    assert loop.outcome[0] is Outcome.WITHDRAWN


def test_a_trainer_may_go_on_after_ctrl_c(loop: Loop) -> None:
    for skipped in (False, True):
        interrupt(loop)
        if not skipped:
            loop.backward()
        loop.step()
        assert not loop.job.under_way
    loop.backward()
    assert loop.job.under_way
    loop.step()
    assert (loop.turns, loop.job.under_way) == (3, False)


def test_what_a_call_returns_may_be_read_after_its_turn() -> None:
    with Loop(optimizers=0) as loop:
        output = loop.model(loop.batch)
    assert loop.backend.kept == [output]


def test_two_models_of_one_loop_are_not_two_jobs() -> None:
    loop = Loop()
    second = nn.Linear(2, 2)
    with (
        loop,
        loop.gpu.attached("second", second, torch.optim.SGD(second.parameters(), lr=0.1), needs=NEEDS),
        pytest.raises(OutOfTurn, match=r"job second: this thread is in an iteration of job net"),
    ):
        second(loop.model(loop.batch))


def test_hooks_are_gone_afterwards() -> None:
    with Loop() as loop:
        pass
    loop.backward()
    loop.step()
    assert loop.turns == 0


def test_a_job_that_is_refused_says_so_in_the_loop() -> None:
    loop = Loop(needs=Needs(50, 60, 1))
    with pytest.raises(JobEnded, match="it needs 110 bytes, and the GPU has 100"), loop:
        loop.backward()
    assert not loop.job.under_way


def test_what_is_no_optimizer_is_named() -> None:
    loop = Loop()
    schedule = torch.optim.lr_scheduler.ConstantLR(loop.optimizers[0])
    with (
        pytest.raises(InputError, match=r"optimizer: expected a torch.optim.Optimizer .*ConstantLR"),
        loop.gpu.attached("net", loop.model, schedule),
    ):
        raise AssertionError("never attached")


def test_only_what_is_on_a_gpu_is_counted() -> None:
    assert owned_bytes(nn.Linear(4, 4)) == 0


def test_two_loops_take_turns() -> None:
    backend = PlainLaneBackend()
    order = list[str]()
    gpu = TorchGpu("fair", backend)
    both = threading.Barrier(2)

    def train(name: str) -> None:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gpu.attached(name, model, optimizer, needs=NEEDS, iterations=20):
            both.wait(20)
            for _ in range(20):
                optimizer.zero_grad()
                model(torch.ones(3, 4)).sum().backward()
                order.append(name)
                optimizer.step()

    threads = [threading.Thread(target=train, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [row.outcome for row in gpu.rows()] == [Outcome.FINISHED] * 2
    assert sorted(order) == ["a"] * 20 + ["b"] * 20
