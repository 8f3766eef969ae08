"""Models measured on a V100: the table as it was printed, and what stands between measured batch sizes."""

from __future__ import annotations

import pytest

from astrarium.core.errors import InputError
from astrarium.core.quantities import FOREVER, MILLISECOND
from astrarium.placement.problem import ALONE, Form, GpuDemand
from astrarium_papers.elvinger import _v100 as v100
from astrarium_papers.elvinger._measured import Measurement, measured_form
from astrarium_papers.elvinger._v100 import placed_model, placed_models, problem, v100s

ROWS = [Measurement(4, 100, 1000), Measurement(8, 140, None), Measurement(16, 300, 5000)]


def form_of(name: str) -> Form:
    form = placed_model(0, name, 1, MILLISECOND).alone
    assert form is not None
    return form


def test_the_table_has_thirteen_models_with_rising_batches_and_times() -> None:
    assert len(v100.models()) == 13
    for name in v100.models():
        rows = v100.lookup(name)
        assert [row.batch for row in rows] == sorted({row.batch for row in rows})
        assert [row.time for row in rows] == sorted(row.time for row in rows)
        assert all(row.memory is None or 0 < row.memory < v100.MEMORY for row in rows)


def test_times_are_those_of_the_throughput() -> None:
    """Printed for EfficientNet-B7 with 8: 0.0308 s, 260.14 requests a second, 3.54 % of the memory."""
    row = v100.lookup("efficientnet_b7")[1]
    assert row.time == pytest.approx(30.8 * MILLISECOND, abs=0.05 * MILLISECOND)
    assert row.batch * 1e9 / row.time == pytest.approx(260.14, abs=1e-3)
    assert row.memory == round(0.0354 * 16 * 2**30)
    assert row.demand == GpuDemand(0.9296, 0.2825, 0.4355)


def test_what_cannot_be_read_is_unknown_and_takes_nothing_else_with_it() -> None:
    by_batch = {row.batch: row for row in v100.lookup("resnext50_32x4d")}
    assert by_batch[8].memory is None
    assert by_batch[8].demand.weighted_occupancy is None
    assert by_batch[8].demand.occupancy == 0.908
    assert by_batch[16].time == pytest.approx(16 / 684.65 * 1e9, abs=1)
    assert v100.lookup("inception_v3")[-1].demand.occupancy is None


def test_memory_that_cannot_be_read_is_that_of_the_next_size() -> None:
    form = form_of("resnext50_32x4d")
    assert form.memory(0, 4) < form.memory(0, 8) == form.memory(0, 16)


def test_an_unknown_model_is_answered_with_a_close_one() -> None:
    with pytest.raises(InputError, match="did you mean 'resnet50'"):
        v100.lookup("resnet5")


def test_times_between_measured_sizes_lie_on_a_line() -> None:
    form = measured_form(ROWS)
    assert [form.latency(batch) for batch in (4, 5, 6, 8, 12, 16)] == [100, 110, 120, 140, 220, 300]


def test_batches_below_the_smallest_cost_as_much_and_those_above_cannot_run() -> None:
    form = measured_form(ROWS)
    assert [form.latency(batch) for batch in (1, 3, 4)] == [100, 100, 100]
    assert form.max_batch == 16
    assert form.latency(17) == FOREVER


def test_memory_is_that_of_the_next_size_for_which_it_is_known() -> None:
    form = measured_form(ROWS)
    assert [form.memory(0, batch) for batch in (1, 4, 5, 8, 16)] == [1000, 1000, 5000, 5000, 5000]


@pytest.mark.parametrize(
    "rows",
    [[], [Measurement(8, 1, 1), Measurement(4, 2, 2)], [Measurement(4, 1, None)], [Measurement(0, 1, 1)]],
)
def test_measurements_that_make_no_model_are_refused(rows: list[Measurement]) -> None:
    with pytest.raises(InputError):
        measured_form(rows)


def test_demands_are_known_for_measured_sizes_only() -> None:
    model = placed_model(0, "bert", 300, 300 * MILLISECOND)
    assert sorted(model.demands) == [4, 8, 16, 32, 64, 128]
    assert model.demands[4].weighted_occupancy == 0.3183
    assert model.demands[4].memory_bandwidth is None


def test_a_problem_has_every_model_once_and_the_gpus_asked_for() -> None:
    names = ("vgg19", "t5")
    posed = problem(names, 10, MILLISECOND, 3)
    assert posed.models == placed_models(names, 10, MILLISECOND)
    assert [(model.index, model.name, list(model.forms)) for model in posed.models] == [
        (0, "vgg19", [ALONE]),
        (1, "t5", [ALONE]),
    ]
    assert posed.gpus == v100s(3)
    assert {gpu.memory for gpu in posed.gpus} == {v100.MEMORY}
