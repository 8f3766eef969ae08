"""This backend runs jobs on the machines of a Slurm cluster.

A run is one Slurm job, pinned to the machines that the policy chose, in which `srun` starts a keeper on each
of them; parts with unequal numbers of GPUs make it a heterogeneous job. It is known by its name alone, so
that no number can be lost with the arbiter that was told it. Slurm chooses which GPUs of a machine it gives.

Keepers are told of a wish to stop by their folders, and by SIGURG, which ends no process that does not know
it: Slurm sends signals to everything that a step has started, and jobs are only asked once they are up.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Unpack

from astrarium.cluster.live.backend import MachineStatus, Order, RunKey
from astrarium.cluster.live.backends.site import (
    EXIT,
    KEEPER,
    LOG,
    SiteBackend,
    SiteJob,
    SiteOptions,
    SiteRefused,
    SiteSilent,
    SiteView,
)
from astrarium.cluster.live.machine.folders import order_folder
from astrarium.core.errors import InputError

COMMANDS = ("sbatch", "scancel", "scontrol", "squeue")
ANSWER = 60.0  # seconds that a command may take: several times Slurm's own MessageTimeout
LIVING = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING",
          "STAGE_OUT", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD",
          "RESV_DEL_HOLD", "SPECIAL_EXIT"}  # fmt: skip
FAILED = {"FAILED", "OUT_OF_MEMORY"}  # by themselves; others were ended, or came second and did nothing
AWAY = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE", "INVALID",
        "INVALID_REG", "MAINT", "MAINTENANCE", "NOT_RESPONDING", "NO_RESPOND", "REBOOT_ISSUED",
        "UNKNOWN"}  # fmt: skip
# What Slurm's commands say when its controller could not be asked, as in slurm_errno.c.
SILENT = ("Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted",
          "Communication connection failure", "Connection refused", "standby mode", "temporarily unable",
          "Resource temporarily unavailable", "Unexpected message received", "SLURMDB")  # fmt: skip
OURS = ("job-name", "nodelist", "nodes", "gres", "gpus", "gpus-per-node", "output", "signal", "requeue",
        "wrap", "array", "ntasks", "ntasks-per-node", "chdir")  # fmt: skip


class SlurmBackend(SiteBackend):
    """A backend on the machines of a Slurm cluster, or of a *partition*; *options* are further ones of
    `sbatch`, for every run."""

    name = "Slurm"
    kind = "slurm"

    def __init__(
        self,
        home: Path,
        partition: str = "",
        account: str = "",
        options: Sequence[str] = (),
        **site: Unpack[SiteOptions],
    ) -> None:
        super().__init__(home, **site)
        for command in COMMANDS:
            if shutil.which(command) is None:
                expected = f"a machine on which Slurm's {', '.join(COMMANDS)} are in PATH; {command} is not"
                raise InputError("live.backend", "slurm", expected)
        _check_options(options)
        self._partition = partition
        chosen = {"--partition": partition, "--account": account}
        self._options = [*(f"{name}={value}" for name, value in chosen.items() if value), *options]
        self._addresses: dict[str, str] = {}
        self.reach()
        if partition and not self._addresses:
            expected = "a partition of this Slurm with machines that have GPUs (see `sinfo --format='%R %G'`)"
            raise InputError("live.partition", partition, expected)

    def poll(self) -> SiteView:
        nodes = [_fields(line) for line in _said("scontrol", "show", "nodes", "--oneliner").splitlines()]
        ours = [node for node in nodes if _gpus(node) and self._is_ours(node)]
        self._addresses = {node["NodeName"]: node.get("NodeAddr", node["NodeName"]) for node in ours}
        machines = {
            node["NodeName"]: MachineStatus(_gpus(node), _rack(node)) for node in ours if _there(node)
        }
        return SiteView(machines, self._jobs())

    def submit(self, order: Order) -> None:
        if not self._named(self.run_name(order.key)):
            folder = order_folder(self.home, order)
            script = folder / "site.sh"
            script.write_text(self._script(order, folder))
            _said("sbatch", "--parsable", *self._words(order, folder), str(script))

    def ask(self, key: RunKey) -> None:
        _said("scancel", "--me", "--state=PENDING", f"--name={self.run_name(key)}")
        _said("scancel", "--me", "--state=RUNNING", "--signal=URG", f"--name={self.run_name(key)}")

    def kill(self, key: RunKey) -> None:
        _said("scancel", "--me", f"--name={self.run_name(key)}")

    def address(self, order: Order) -> str:
        first = order.parts[0].machine
        return self._addresses.get(first, first)

    def _is_ours(self, node: Mapping[str, str]) -> bool:
        return not self._partition or self._partition in node.get("Partitions", "").split(",")

    def _named(self, name: str = "") -> list[list[str]]:
        """Return our jobs, or those of a *name*, also those that have ended a while ago."""
        only = [f"--name={name}"] if name else []
        output = _said("squeue", "--me", "--noheader", "--states=all", *only, "--format=%T|%N|%j")
        return [line.split("|", 2) for line in output.splitlines()]

    def _jobs(self) -> dict[RunKey, SiteJob]:
        """Return what Slurm says by run: one lives as long as any job, or part of a job, of its name does."""
        jobs: dict[RunKey, SiteJob] = {}
        for state, nodes, name in self._named():
            key = self.run_key(name)
            job = SiteJob(state in LIVING, bool(nodes), state, state in FAILED)
            if key is not None and not (key in jobs and jobs[key].lives):
                jobs[key] = job
        return jobs

    def _words(self, order: Order, folder: Path) -> list[str]:
        """Return the options of `sbatch`: those of each group of machines, which colons divide."""
        first = ["--no-requeue", f"--signal=URG@{self.grace.site}", f"--output={folder / LOG}",
                 f"--chdir={folder}"]  # fmt: skip
        groups = [
            [f"--job-name={self.run_name(order.key)}", f"--nodelist={','.join(machines)}",
             f"--nodes={len(machines)}", "--ntasks-per-node=1", f"--gres=gpu:{gpus}", *self._options]
            for gpus, machines in _groups(order).items()
        ]  # fmt: skip
        return [*first, *groups[0], *(word for group in groups[1:] for word in (":", *group))]

    def _script(self, order: Order, folder: Path) -> str:
        """Return what Slurm runs on the first machine. Its code is written down for when Slurm has forgotten
        the job; a shell that was asked to leave still waits for `srun`."""
        active = [part.machine for part in order.active]
        groups = _groups(order)
        where = [f"--nodelist={active[0]}", "--nodes=1", "--ntasks=1"]
        if len(active) > 1:
            where = [f"--het-group={','.join(map(str, range(len(groups))))}"] if len(groups) > 1 else []
            where.append("--ntasks-per-node=1")
        places = " ".join(f"{shlex.quote(name)}) part={place};;" for place, name in enumerate(active))
        python = shlex.quote(sys.executable)
        keeper = shlex.quote(str(self.home / KEEPER / "__main__.py"))
        keeper_command = (f"case $SLURMD_NODENAME in {places} esac; "
                f"python={python}; [ -x $python ] || python=python3; "
                f"exec $python -I -S {keeper} keep {shlex.quote(str(folder))}/part-$part")  # fmt: skip
        step = [
            "srun",
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--cpu-bind=none",
            *where,
            "sh",
            "-c",
            keeper_command,
        ]
        return f"#!/bin/sh\ntrap : TERM\n{shlex.join(step)}\ncode=$?\necho $code > {EXIT}\nexit $code\n"


def _check_options(options: Sequence[str]) -> None:
    """Refuse options of `sbatch` that are not written as one word each, or that say what we say."""
    for option in options:
        name = option.removeprefix("--").partition("=")[0]
        if not option.startswith("--") or name.removeprefix("no-") in OURS:
            expected = (
                "options of sbatch, each one word such as --mem-per-gpu=32G, but those that the backend sets"
            )
            raise InputError("live.options", option, expected)


def _groups(order: Order) -> dict[int, list[str]]:
    """Return the machines of a run by the number of their GPUs; the first machine is in the first group."""
    groups: dict[int, list[str]] = {}
    for part in order.parts:
        groups.setdefault(len(part.gpus), []).append(part.machine)
    return groups


def _said(*words: str) -> str:
    """Return what a command of Slurm has said."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=ANSWER, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise SiteSilent(f"{words[0]} took more than {ANSWER:.0f} s") from None
    except OSError as error:
        raise SiteSilent(f"{words[0]}: {error.strerror}") from None
    if done.returncode == 0:
        return done.stdout
    lines = done.stderr.strip().splitlines() or [f"{words[0]} has ended with exit code {done.returncode}"]
    silent = words[0] in ("scontrol", "squeue") or any(message in done.stderr for message in SILENT)
    raise (SiteSilent if silent else SiteRefused)(lines[-1])


def _fields(line: str) -> dict[str, str]:
    """Return the fields of a node; what a person wrote as a reason comes last and hides none of them."""
    return dict(reversed(re.findall(r"(\w+)=(\S*)", line)))


def _gpus(node: Mapping[str, str]) -> int:
    """Return how many GPUs a node has: `gpu:4`, `gpu:a100:4(S:0-1),gpu:v100:2`."""
    plain = re.sub(r"\([^)]*\)", "", node.get("Gres", ""))
    return sum(
        int(resource.rpartition(":")[2])
        for resource in plain.split(",")
        if re.fullmatch(r"gpu(:\S+)?:\d+", resource)
    )


def _there(node: Mapping[str, str]) -> bool:
    """Return whether a node takes jobs: a star after its state says that it does not answer."""
    state = node.get("State", "UNKNOWN")
    return "*" not in state and not AWAY & {flag.rstrip("~#$@^!%-") for flag in state.split("+")}


def _rack(node: Mapping[str, str]) -> int:
    """Return the rack of a node, which it tells by a feature: `Feature=rack-3`."""
    feature = re.search(r"(?:^|,)rack-(\d+)(?:,|$)", node.get("AvailableFeatures", ""))
    return int(feature[1]) if feature else 0
