"""The guide is run, block by block; without a GPU, on the lane backend of its last section."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout

import pytest

from tests.docs.pages import BLOCK
from tests.support.paths import ROOT

torch = pytest.importorskip("torch")

from astrarium.core.quantities import MILLISECOND  # noqa: E402
from astrarium.device.live import torch_backend, torch_lane_watch  # noqa: E402
from astrarium.device.live.torch_hooks import LONG  # noqa: E402
from astrarium.device.policies import iteration_policies  # noqa: E402
from astrarium.device.policies.turns import GRACE  # noqa: E402
from astrarium.testing.plain_backend import PlainLaneBackend  # noqa: E402

PAGE = (ROOT / "docs" / "device" / "lanes.md").read_text()


def test_the_code_of_the_page_says_what_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "TorchLaneBackend", lambda: PlainLaneBackend(2 << 30))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    names: dict[str, object] = {"__name__": "guide"}
    printed = ""
    for language, body in BLOCK.findall(PAGE):
        if language == "python":
            with redirect_stdout(io.StringIO()) as output:
                exec(compile(body, "lanes.md", "exec"), names)
            printed = output.getvalue()
        elif language == "text":
            assert printed == body


def test_the_command_of_the_page_exists() -> None:
    [command] = [body.split() for language, body in BLOCK.findall(PAGE) if language == "sh"]
    assert (ROOT / command[2]).exists()


def test_the_page_has_the_numbers_of_the_code() -> None:
    assert f"After {LONG} calls" in PAGE
    assert f"every {torch_lane_watch.RARELY}th" in PAGE
    assert f"{torch_backend.FRAGMENTS:.0%} and {torch_backend.SMALL >> 20} MiB" in PAGE
    assert torch_backend.AHEAD == 3
    assert "up to three iterations ahead" in PAGE
    assert GRACE == MILLISECOND
    assert "waits up to 1 ms for a better job" in PAGE


def test_the_page_names_every_policy() -> None:
    [line] = re.findall(r'TorchGpu\("fair"\)  # or (.*)', PAGE)
    assert sorted(["fair", *line.split(", ")]) == iteration_policies.names()
