"""The zoo holds the paper's tables, to the nanosecond."""

from __future__ import annotations

import pytest

from astrarium.core.errors import InputError
from astrarium.core.profiles import Linear
from astrarium.serving import zoo


def test_two_gpus_with_the_papers_number_of_models() -> None:
    assert {gpu: len(zoo.models(gpu)) for gpu in zoo.gpus()} == {"1080Ti": 35, "A100": 37}


def test_numbers_are_exact() -> None:
    profile = zoo.lookup("1080Ti", "ResNet50")
    assert (profile.alpha, profile.beta, profile.slo) == (2_050_000, 5_378_000, 27_000_000)
    assert profile.profile == Linear(profile.alpha, profile.beta)


def test_every_model_can_batch_within_its_objective() -> None:
    for gpu in zoo.gpus():
        for name in zoo.models(gpu):
            profile = zoo.lookup(gpu, name)
            assert 2 * profile.alpha + profile.beta <= profile.slo, (gpu, name)


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(InputError, match="did you mean 'ResNet50'"):
        zoo.lookup("A100", "ResNet5")
    with pytest.raises(InputError, match="one of 1080Ti, A100"):
        zoo.models("H100")
