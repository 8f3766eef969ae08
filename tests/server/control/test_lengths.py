"""Plans of models whose requests have lengths follow what batches take, and what padding does to answers."""

from __future__ import annotations

import dataclasses
import math
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from astrarium._front import Verdict
from astrarium.core.optional import extension
from astrarium.core.quantities import FOREVER, MILLISECOND, SECOND
from astrarium.server.contract import Refused
from astrarium.server.control.calls.admission import admit
from astrarium.server.control.calls.ticket import KeptGpu, Tensors
from astrarium.server.control.health.bounds import scaled
from astrarium.server.control.health.drift_watch import EVERY, FEWEST, DriftWatch
from astrarium.server.control.plan import ModelPlan
from astrarium.server.control.replanning import Replanner
from astrarium.server.control.repository import unknown_lengths
from astrarium.serving.contract import GpuSpec, Lengths, ModelSpec, Setup
from astrarium.serving.live.messages import ModelLoaded
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.twin.native import native_setup
from tests.support.live_fakes import Stage

MS = MILLISECOND
PLAIN = 1024  # the weight of a call as long as any
SHORT = (0, 1 * MS, 2 * MS, FOREVER)
LONG = (0, 10 * MS, 20 * MS, FOREVER)
SPEC = ModelSpec(0, "texts", 100 * MS, LONG, lengths=Lengths((16, 64), (SHORT, LONG)))
SETUP = Setup((SPEC,), (GpuSpec(0),))


def test_a_plan_is_scaled_in_all_its_tables() -> None:
    slower = scaled(SPEC, 1.5)
    assert slower.latency == (0, 15 * MS, 30 * MS, FOREVER)
    assert slower.lengths is not None
    assert slower.lengths.latency == ((0, 1.5 * MS, 3 * MS, FOREVER), slower.latency)


@pytest.mark.parametrize(("bucket", "kept"), [(0, 1.5 * MS), (1, 15 * MS)])
def test_a_batch_is_held_against_what_its_length_takes(bucket: int, kept: float) -> None:
    watch = DriftWatch(SETUP, 0)
    now = 100 * SECOND
    watch.saw(0, [KeptGpu(now, 1, int(kept), bucket)] * FEWEST)
    revised = watch.revised(SETUP, now + EVERY)
    assert revised is not None
    assert revised.models[0].lengths == scaled(SPEC, 1.5).lengths


def test_batches_in_several_runs_say_nothing_of_the_profile() -> None:
    watch = DriftWatch(SETUP, 0)
    watch.saw(0, [KeptGpu(SECOND, 2, 50 * MS, -1)] * FEWEST)
    assert watch.revised(SETUP, 2 * EVERY) is None


@pytest.mark.parametrize(("padding", "together"), [("safe", "padded"), ("changes", "length"), ("", "padded")])
def test_where_padding_changes_answers_only_equal_lengths_are_planned_together(
    padding: str, together: str
) -> None:
    begun: list[Setup] = []
    coordinator = SimpleNamespace(
        setup=SETUP, begin=begun.append, accounts=SimpleNamespace(batch_listeners=[])
    )
    plan = SimpleNamespace(setup=SETUP, measured_delays=False)
    repository = SimpleNamespace(entries=[SimpleNamespace(padding=(padding, "", ""))])
    parts = [cast(Any, part) for part in (plan, coordinator, repository, None)]
    Replanner(parts[0], parts[1], parts[2], parts[3], lambda: 0).follow_drift()
    lengths = cast(Lengths, SPEC.lengths)
    wanted = replace(SPEC, lengths=replace(lengths, together="length"))
    assert begun == ([replace(SETUP, models=(wanted,))] if together == "length" else [])


@pytest.mark.parametrize(
    ("shapes", "length"),
    [([(1, 5)], 5), ([(2, 9)], 9), (None, 0)],
)
def test_a_row_is_as_long_as_its_open_dimension(shapes: list[tuple[int, ...]] | None, length: int) -> None:
    tensors = Tensors((TensorSpec("TOKENS", "INT64", (-1,)),), ())
    known = None if shapes is None else [(shape, 8) for shape in shapes]
    assert tensors.length_of(known) == length


def test_the_longest_input_counts_and_an_image_by_its_area() -> None:
    image = TensorSpec("IMAGE", "FP32", (3, -1, -1))
    query = TensorSpec("QUERY", "INT64", (-1,))
    fixed = TensorSpec("FLAG", "INT64", (4,))
    tensors = Tensors((image, query, fixed), ())
    shapes = [((1, 3, 8, 16), 0), ((1, 100), 0), ((1, 4), 0)]
    assert tensors.length_of(shapes) == 8 * 16


def admission_of(spec: ModelSpec) -> Any:
    front: Any = extension("_front")
    simulator: Any = extension("_simulator")
    admission = front.Exchange(memoryview(bytearray(4096)), 1, 1 << 20, 1).admission
    assert admission.cost(0, 16).weight == PLAIN, "before there is a plan all are alike"
    admission.plan(native_setup(simulator, replace(SETUP, models=(spec,))), 1, 0)
    admission.close(False)
    return admission


def test_calls_cost_what_their_length_takes_beside_the_longest() -> None:
    """Of one whose length nobody knows yet it is certain only that it takes as long as the shortest."""
    admission = admission_of(SPEC)
    costs = [admission.cost(0, length) for length in (0, 1, 16, 17, 64, 99)]
    assert [cost.weight for cost in costs] == [PLAIN // 10] * 3 + [PLAIN] * 3
    assert [cost.needed for cost in costs] == [MS] * 3 + [10 * MS] * 3
    assert [cost.length for cost in costs] == [0, 1, 16, 17, 64, 99]


def test_a_model_whose_calls_cost_the_same_tells_no_length() -> None:
    cost = admission_of(replace(SPEC, lengths=None)).cost(0, 16)
    assert (cost.weight, cost.needed, cost.length) == (PLAIN, 10 * MS, 0)


def test_a_short_call_is_let_in_where_a_long_one_is_told_that_it_is_too_late() -> None:
    admission = admission_of(SPEC)
    admit(admission, 0, "texts", admission.cost(0, 16), 0, 5 * MS, 0)
    said = "texts cannot answer within 5 ms: one request of length 64 alone takes 10 ms, and 0 ms had passed"
    with pytest.raises(Refused, match=said):
        admit(admission, 0, "texts", admission.cost(0, 64), 0, 5 * MS, 0)
    assert admission.open() == 1


@pytest.mark.parametrize("buckets", [128, 129, 300, 1000])
def test_costs_rise_evenly_however_many_buckets_there_are(buckets: int) -> None:
    """Beyond 128, several share a step, which costs what the longest of them does."""
    tables = tuple((0, bucket * MS, FOREVER) for bucket in range(1, buckets + 1))
    lengths = Lengths(tuple(range(1, buckets + 1)), tables)
    admission = admission_of(ModelSpec(0, "texts", 2 * SECOND, tables[-1], lengths=lengths))
    wide = math.ceil(buckets / 128)
    for length in range(1, buckets + 1):
        cost = admission.cost(0, length)
        assert length * MS <= cost.needed < (length + wide) * MS
        assert cost.weight == pytest.approx(PLAIN * cost.needed / (buckets * MS), abs=1)


def test_a_call_weighs_what_its_length_takes_once_that_is_known() -> None:
    """Ninety of the shortest may be open, or nine of the longest."""
    admission = admission_of(SPEC)
    least = admission.cost(0).weight
    for _ in range(80):
        assert admission.admit(0, admission.cost(0), 100 * MS, 0, 0) == Verdict.TAKEN
    for _ in range(9):
        admission.reweigh(0, least, PLAIN, 100 * MS)
    assert admission.admit(0, admission.cost(0), 100 * MS, 0, 0) == Verdict.BACKLOG
    for _ in range(9):
        admission.ended(0, PLAIN, 100 * MS)
    assert admission.admit(0, admission.cost(0), 100 * MS, 0, 0) == Verdict.TAKEN


def test_a_text_is_weighed_when_it_has_its_tokens() -> None:
    stage = Stage()
    ticket = stage.call(made=False)
    assert ticket.weight == 0
    ticket.inputs_ready = True
    stage.open_calls.inputs_made()
    assert ticket.weight == PLAIN


TOKENS = TensorSpec("TOKENS", "INT64", (-1,))
TYPES = TensorSpec("TYPES", "INT64", (-1,))
FIXED = TensorSpec("FIXED", "FP32", (2,))
IMAGE = TensorSpec("IMAGE", "FP32", (3, -1, -1), ranges=(None, (64, 512), None))


def run_by(backend: str, plan: ModelPlan) -> ModelPlan:
    files = {kind: dataclasses.replace(own, backend=backend) for kind, own in plan.files.items()}
    return dataclasses.replace(plan, files=files)


@pytest.mark.parametrize(
    ("backend", "inputs", "said"),
    [
        (
            "python",
            (TOKENS,),
            'input TOKENS may have any length, .* alike: .* `shape: \\["1..512"\\]`, then ',
        ),
        ("torch", (TOKENS, TYPES), "inputs TOKENS, TYPES .* alike and run without CUDA graphs: "),
        ("onnx", (FIXED, IMAGE), 'input IMAGE .* `shape: \\[3, "64..512", "1..512"\\]`'),
        ("python", (FIXED, dataclasses.replace(TOKENS, ranges=((1, 512),))), ""),
        ("emulated", (TOKENS,), ""),
    ],
)
def test_an_input_of_unknown_length_is_named_with_what_to_write(
    backend: str, inputs: tuple[TensorSpec, ...], said: str
) -> None:
    plan = run_by(backend, Stage(gpus=1).plan.models[0])
    hints = unknown_lengths(plan, inputs)
    assert len(hints) == bool(said)
    assert re.match(said, "".join(hints))
    assert unknown_lengths(dataclasses.replace(plan, by_length=True), inputs) == []


def test_an_input_of_unknown_length_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(gpus=2)
    entry = stage.repository.entries[0]
    entry.plan = run_by("python", entry.plan)
    with caplog.at_level("INFO"):
        for worker in (0, 1):
            stage.repository.heard(worker, ModelLoaded(0, (TOKENS,), ()))
    [record] = caplog.records
    assert record.getMessage().endswith("then `astrarium profile FILE --write`")
