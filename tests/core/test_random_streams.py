"""Named random streams do not disturb each other."""

from __future__ import annotations

from astrarium.core.random_streams import stream


def test_a_stream_depends_on_seed_and_names_only() -> None:
    draw = stream(1, "arrivals", "resnet50").integers(1 << 60, size=4).tolist()
    assert draw == stream(1, "arrivals", "resnet50").integers(1 << 60, size=4).tolist()
    others = [stream(2, "arrivals", "resnet50"), stream(1, "arrivals", "vgg"), stream(1, "work", "resnet50")]
    assert all(draw != other.integers(1 << 60, size=4).tolist() for other in others)
