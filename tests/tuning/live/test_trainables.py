"""Ray Tune's trainables, stepped, saved and moved by us, say what they say in Ray Tune."""

from __future__ import annotations

import gc
import json
import tempfile
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from astrarium.core.errors import InputError
from astrarium.tuning.live.training.workers import Emulated, Workers, current_workers
from astrarium.tuning.ray_tune.trainables import trainable_build
from astrarium.tuning.runtime import Width
from astrarium.tuning.spaces import Choice, Range

pytest.importorskip("ray.tune")
torch = pytest.importorskip("torch")
from ray import tune  # noqa: E402

from astrarium.tuning.ray_tune import fit  # noqa: E402
from astrarium.tuning.ray_tune.fitting import split  # noqa: E402
from tests.support.tuning.trainings import one_fork_server  # noqa: E402

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    with one_fork_server():
        yield


class Falling(tune.Trainable):
    """Keeps what it knows in a file, or hands it over as a dictionary."""

    def setup(self, config: dict[str, Any]) -> None:
        self.loss = float(config["start"])
        self.cleaned = False

    def step(self) -> dict[str, Any]:
        self.loss *= 0.5
        return {
            "loss": self.loss,
            "seen": self.iteration,
            "done": self.iteration >= self.config.get("last", 99),
        }

    def save_checkpoint(self, checkpoint_dir: str) -> Any:
        if self.config.get("as_dict"):
            return {"loss": self.loss}
        Path(checkpoint_dir, "deep").mkdir()
        Path(checkpoint_dir, "deep", "loss.json").write_text(json.dumps(self.loss))
        return None

    def load_checkpoint(self, checkpoint: Any) -> None:
        if isinstance(checkpoint, dict):
            self.loss = checkpoint["loss"]
        else:
            self.loss = json.loads(Path(checkpoint, "deep", "loss.json").read_text())

    def cleanup(self) -> None:
        self.cleaned = True


def falling(config: dict[str, Any]) -> None:
    """The same as a function, which writes a checkpoint now and then."""
    loss = float(config["start"])
    done = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            loss, done = json.loads(Path(folder, "state.json").read_text())
    while done < config.get("last", 99):
        loss = loss * 0.5
        done = done + 1
        if done % config.get("every", 1):
            tune.report({"loss": loss})
            continue
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps([loss, done]))
            tune.report({"loss": loss}, checkpoint=tune.Checkpoint.from_directory(folder))


def made(trainable: Any, **values: Any) -> Any:
    return trainable_build(trainable, "loss")({"start": 64.0, **values}, Workers())


def carried(state: Any) -> Any:
    """As through a checkpoint on disk."""
    file = BytesIO()
    torch.save(state, file)
    return torch.load(BytesIO(file.getvalue()), weights_only=True)


KINDS: list[tuple[Any, dict[str, Any]]] = [
    (Falling, {}),
    (Falling, {"as_dict": True}),
    (falling, {}),
    (falling, {"every": 3}),
    (falling, {"every": 50}),
]


@pytest.mark.parametrize(("trainable", "values"), KINDS)
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_one_that_moves_says_what_it_would_have_said(trainable: Any, values: Any, after: int) -> None:
    before = made(trainable, **values)
    values_before = [before.step() for _ in range(after)]
    state = carried(before.save())
    before.close()
    again = made(trainable, **values)
    again.load(state)
    assert values_before + [again.step() for _ in range(5 - after)] == [32.0, 16.0, 8.0, 4.0, 2.0]
    again.close()


def test_a_moved_one_may_move_again_before_its_next_checkpoint() -> None:
    one = made(falling, every=3)
    reported = []
    for _ in range(7):
        reported.append(one.step())
        state = carried(one.save())
        one.close()
        one = made(falling, every=3)
        one.load(state)
    one.close()
    assert reported == [64 * 0.5**n for n in range(1, 8)]


def test_iterations_are_counted_on() -> None:
    one = made(Falling, last=3)
    one.step()
    again = made(Falling, last=3)
    again.load(carried(one.save()))
    assert [again.step() for _ in range(5)] == [16.0, 8.0, 4.0, 4.0, 4.0]  # it says that it is done
    again.close()
    assert again._one.cleaned


def test_a_function_that_ends_early_keeps_its_last_value() -> None:
    one = made(falling, last=2)
    assert [one.step() for _ in range(4)] == [32.0, 16.0, 16.0, 16.0]
    assert carried(one.save())["last"] == {"loss": 16.0}
    one.close()


def test_an_error_is_that_of_the_user() -> None:
    def broken(config: dict[str, Any]) -> None:
        tune.report({"loss": 1.0})
        raise ZeroDivisionError("by the user")

    one = made(broken)
    assert one.step() == 1.0
    with pytest.raises(ZeroDivisionError, match="by the user"):
        one.step()
    one.close()


@pytest.mark.parametrize("trainable", [Falling, falling])
def test_a_metric_that_is_not_reported_is_named(trainable: Any) -> None:
    one: Any = trainable_build(trainable, "accuracy")({"start": 1.0}, Workers())
    with pytest.raises(InputError, match=r"accuracy.*loss|loss.*accuracy"):
        one.step()
    one.close()


def test_trainables_find_their_resources_and_their_workers() -> None:
    def asking(config: dict[str, Any]) -> None:
        gpus = tune.get_context().get_trial_resources().required_resources["GPU"]
        tune.report({"loss": gpus, "size": current_workers().size})

    one: Any = trainable_build(asking, "loss")({}, Workers(size=3, width=Width(3)))
    assert one.step() == 3.0
    one.close()
    part: Any = trainable_build(asking, "loss")({}, Workers(width=Width(1, 4)))
    assert part.step() == 0.25
    part.close()
    both: Any = trainable_build(asking, "size")({}, Workers(size=2, width=Width(2)))
    assert both.step() == 2.0
    both.close()


def test_nothing_is_left_in_the_home_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ray.tune.trainable.trainable.DEFAULT_STORAGE_PATH", str(tmp_path / "results"))
    one = made(Falling)
    one.step()
    one.close()
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("wrong", [3, "train", dict])
def test_what_is_no_trainable_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"ray\.tune\.Trainable"):
        trainable_build(wrong, "loss")


def test_a_metric_is_needed() -> None:
    with pytest.raises(InputError, match="name of a value"):
        trainable_build(Falling, "")


def test_a_thread_ends_with_the_training_that_it_belongs_to() -> None:
    before = threading.active_count()
    one = made(falling)
    one.step()
    assert threading.active_count() == before + 1
    del one
    gc.collect()
    assert threading.active_count() == before


def test_spaces_of_ray_tune_are_ours() -> None:
    space = split(
        {
            "rate": tune.loguniform(0.001, 1.0),
            "share": tune.uniform(0, 1),
            "layers": tune.randint(1, 5),
            "width": tune.lograndint(8, 64),
            "kind": tune.choice(["a", "b"]),
            "grid": tune.grid_search([1, 2]),
            "own": {"low": 1, "high": 2},
            "step": tune.quniform(0, 1, 0.1),
            "data": {"folder": "x"},
            "batch": 8,
        }
    )
    assert space.chosen == {
        "rate": Range(0.001, 1.0, log=True),
        "share": Range(0, 1),
        "layers": Range(1, 4, whole=True),
        "width": Range(8, 63, log=True, whole=True),
        "kind": Choice(("a", "b")),
        "grid": Choice((1, 2)),
        "own": Range(1, 2),
    }
    assert space.foreign.keys() == {"step"}
    assert space.fixed == {"data": {"folder": "x"}, "batch": 8}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"param_space": {"x": tune.quniform(0, 1, 0.1)}}, "param_space.x"),
        ({"engine": "mars"}, "local or ray"),
        ({"mode": "up"}, "min or max"),
        ({"search": "random:candidates=0"}, "candidates"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_started(changed: Any, expected: str) -> None:
    usual = {"param_space": {"x": tune.uniform(0, 1)}, "metric": "loss", "gpus": 1, "emulated": Emulated()}
    with pytest.raises(InputError, match=expected):
        fit(Falling, **usual | changed)


@pytest.mark.thorough
@pytest.mark.parametrize("trainable", [Falling, falling])
def test_trainables_are_searched_as_they_are(trainable: Any) -> None:
    """The smaller it starts, the smaller it ends."""
    pytest.importorskip("optuna")
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    searcher = OptunaSearch(sampler=optuna.samplers.RandomSampler(seed=1))
    space = {"start": tune.uniform(1, 64), "every": 2}
    search = "successive-halving:candidates=4,iterations=4,eta=2"
    result = fit(trainable, space, "loss", searcher=searcher, search=search, gpus=2, emulated=True)
    record = result.record
    done = {candidate.values["start"]: candidate.done for candidate in record.candidates}
    assert [done[start] for start in sorted(done)] == [4, 2, 1, 1]
    for candidate in record.candidates:
        assert candidate.value == pytest.approx(candidate.values["start"] * 0.5**candidate.done)
