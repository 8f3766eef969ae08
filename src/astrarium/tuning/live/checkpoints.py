"""Checkpoints of candidates are files: checkpoints/<candidate>/<iterations>.pt.

A checkpoint that exists is whole: it is written under another name first. With what a training saves come the
states of all random generators, so that a run goes on as if it had never stopped.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from astrarium.core.errors import InputError
from astrarium.run.unpickling import load_file, make_own
from astrarium.tuning.live.backend import Checkpoint
from astrarium.tuning.live.random_states import random_states, restore_random

SUFFIX = ".pt"


class Checkpoints:
    """The checkpoints of a backend are in one folder. For each candidate it keeps those that a trial ended
    with, because others may begin there, the best and the newest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: dict[int, set[int]] = {}  # iterations, by candidate
        self._newest: dict[int, int] = {}
        self._best: dict[int, int] = {}

    def wrote(self, candidate: int, iterations: int, keep: bool, best: bool = False) -> None:
        """Note a new checkpoint, and remove what it takes the place of, unless a trial ended with that."""
        kept = self._kept.setdefault(candidate, set())
        if keep:
            kept.add(iterations)
        before = {self._newest.get(candidate), self._best.get(candidate)}
        self._newest[candidate] = iterations
        if best:
            self._best[candidate] = iterations
        for old in before - {None, iterations, self._best.get(candidate)} - kept:
            assert old is not None
            path(self.folder, Checkpoint(candidate, old)).unlink(missing_ok=True)

    def kept(self, candidate: int) -> list[int]:
        """Return the iterations of each checkpoint of a candidate."""
        files = (self.folder / str(candidate)).glob(f"*{SUFFIX}")
        return sorted(int(file.stem) for file in files if file.stem.isdigit())

    def clear(self, candidate: int) -> None:
        """Throw a candidate's checkpoints away."""
        shutil.rmtree(self.folder / str(candidate), ignore_errors=True)


def path(folder: Path, checkpoint: Checkpoint) -> Path:
    return folder / str(checkpoint.candidate) / f"{checkpoint.iterations}{SUFFIX}"


def write(folder: Path, checkpoint: Checkpoint, state: Any) -> None:
    import torch

    final = path(folder, checkpoint)
    final.parent.mkdir(parents=True, exist_ok=True)
    for old in final.parent.glob("*.draft"):  # of a process that was killed while it wrote
        old.unlink(missing_ok=True)
    draft = final.with_suffix(f".{os.getpid()}.draft")
    try:
        torch.save({"state": state, "random": random_states()}, draft)
        make_own(draft)
        draft.replace(final)
    except (OSError, RuntimeError) as error:  # PyTorch does not say that a disk is full
        draft.unlink(missing_ok=True)
        free = shutil.disk_usage(final.parent).free // 2**20
        raise OSError(f"{final} could not be written, with {free} MiB free there: {error}") from error


def read(folder: Path, checkpoint: Checkpoint) -> Any:
    """Return what was saved; the random generators go on where they were."""
    file = path(folder, checkpoint)
    if not file.is_file():
        raise InputError("checkpoint", str(file), "a checkpoint that is still there")
    with file.open("rb") as opened:
        content = load_file(opened, device="cpu")
    restore_random(content["random"])
    return content["state"]
