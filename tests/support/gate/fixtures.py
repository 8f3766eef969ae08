"""Fixtures of the gate's tests: pytest_plugins = ("tests.support.gate.fixtures",)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gate.build import Built, build
from tests.support.gate.remote import Gate


@pytest.fixture(scope="session")
def gate_built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("gate"))


@pytest.fixture
def gate(gate_built: Built, tmp_path: Path) -> Iterator[Gate]:
    """Programs behind the preloaded gate, on a stub driver, with a board of their own."""
    gate = Gate(gate_built.gate, tmp_path)
    yield gate
    gate.close()
