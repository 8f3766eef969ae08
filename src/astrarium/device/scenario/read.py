"""A scenario of jobs is read from a file, and checked in every part."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from astrarium.core.choice import DEFAULT_SEED, Seed, WrittenScenario, read_policy
from astrarium.core.decode import Decoder, check_keys, check_names
from astrarium.core.errors import InputError
from astrarium.device.policies import iteration_policies
from astrarium.device.scenario.schema import Gpu, JobEntry, Mix

DEFAULT_POLICY = "fair"
SECTIONS = ("gpu", "jobs", "policy", "seed")


class JobScenario(WrittenScenario, frozen=True, kw_only=True):
    """Jobs on one GPU: what they need, when they come, and the policy that gives them turns."""

    level: ClassVar[str] = "device"
    policies = iteration_policies
    gpu: Gpu
    jobs: tuple[JobEntry, ...] | Mix


def parse(raw: Any, path: Path = Path()) -> JobScenario:
    if not isinstance(raw, dict):
        raise InputError("", raw, "a mapping with gpu and jobs")
    check_keys(raw, list(SECTIONS), "")
    decode = Decoder().decode
    return JobScenario(
        gpu=decode(Gpu, {} if raw.get("gpu") is None else raw["gpu"], "gpu"),
        jobs=_jobs(raw.get("jobs"), decode),
        policy=read_policy(raw.get("policy"), iteration_policies, DEFAULT_POLICY),
        seed=decode(Seed, raw.get("seed", DEFAULT_SEED), "seed"),
        raw=raw,
        source=str(path),
    )


def _jobs(raw: Any, decode: Any) -> tuple[JobEntry, ...] | Mix:
    if isinstance(raw, dict):
        mix: Mix = decode(Mix, raw, "jobs")
        if not mix.interval:
            raise InputError("jobs.interval", "0s", "a duration above 0, such as 30s")
        return mix
    if not isinstance(raw, list) or not raw:
        raise InputError("jobs", raw, "a list of jobs, or a mix such as {salus: 100}")
    entries: tuple[JobEntry, ...] = decode(tuple[JobEntry, ...], raw, "jobs")
    check_names(entries, "jobs", "job")
    return entries
