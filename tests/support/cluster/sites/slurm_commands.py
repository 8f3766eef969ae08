"""A small Slurm in a folder: `python slurm_commands.py COMMAND WORDS...`, for sbatch, squeue, scancel,
scontrol and srun. Jobs are really run, as processes of this machine; nodes are names.

What it says, and how signals travel, was taken from Slurm 22.05.8 as Debian 12 has it. A job waits until the
GPUs of its nodes are free, and is given those with the highest numbers.

Files in the folder make things go wrong: `down` (the controller does not answer), `late` (a job is taken, and
whoever submits it hears nothing), `refuse` (with the words of a refusal).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HOME = Path(os.environ.get("FAKE_SLURM", "."))
TICK = 0.02
KILL_WAIT = 1.0
SILENT = "Unable to contact slurm controller (connect failure)"
NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=16  CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=1.43 "
    "AvailableFeatures={features} ActiveFeatures={features} Gres={gres} NodeAddr=127.0.0.1 "
    "NodeHostName={name} Port=17001 Version=22.05.8 OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC @0  "
    "RealMemory=4000 AllocMem=0 FreeMem=22249 Sockets=1 "
    "Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
    "Partitions={partitions}  BootTime=2026-11-17T18:35:27 SlurmdStartTime=2026-11-17T19:06:00 "
    "LastBusyTime=Unknown CfgTRES=cpu=16,mem=4000M,billing=16 AllocTRES= CapWatts=n/a CurrentWatts=0 "
    "AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s{reason}"
)


@contextlib.contextmanager
def state() -> Iterator[dict[str, Any]]:
    """What the controller knows: one at a time reads and changes it."""
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = HOME / "state.json"
        before = path.read_text()
        known = json.loads(before)
        yield known
        after = json.dumps(known)
        if after != before:
            draft = HOME / "state.new"
            draft.write_text(after)
            draft.replace(path)


def sbatch(words: list[str]) -> None:
    (HOME / "sbatch.log").open("a").write(json.dumps(words) + "\n")
    if (HOME / "refuse").exists():
        sys.exit(f"sbatch: error: Batch job submission failed: {(HOME / 'refuse').read_text()}")
    groups: list[list[str]] = [[]]
    for word in words[:-1]:
        groups.append([]) if word == ":" else groups[-1].append(word)
    read = [dict(word[2:].partition("=")[::2] for word in group) for group in groups]
    with state() as known:
        number = known["next"]
        known["next"] = known["next"] + len(groups)
        known["jobs"][str(number)] = {
            "name": read[0]["job-name"],
            "state": "PENDING",
            "script": words[-1],
            "output": read[0]["output"],
            "chdir": read[0]["chdir"],
            "given": {},
            "groups": [
                {"nodes": group["nodelist"].split(","), "gpus": int(group["gres"].rpartition(":")[2])}
                for group in read
            ],
        }
    subprocess.Popen(
        [sys.executable, __file__, "supervise", str(number)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    if (HOME / "late").exists():
        (HOME / "late").unlink()
        sys.exit("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")
    print(number)


def supervise(words: list[str]) -> None:
    """Stand in for controller and slurmd: wait for the GPUs of a job, run its script, tell how it ended."""
    number = words[0]
    while not _given(number):
        time.sleep(TICK)
    with state() as known:
        job = known["jobs"][number]
    if job["state"] != "RUNNING":
        return
    with Path(job["output"]).open("ab") as output:
        script = subprocess.Popen(
            ["sh", job["script"]],
            cwd=job["chdir"],
            env={**os.environ, "SLURM_JOB_ID": number},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    kill_at = None
    while script.poll() is None:
        time.sleep(TICK)
        with state() as known:
            now = known["jobs"][number]["state"]
        if now == "CANCELLED" and kill_at is None:
            kill_at = time.monotonic() + KILL_WAIT
            _signal(script.pid, signal.SIGTERM)
        if now == "NODE_FAIL" or (kill_at is not None and time.monotonic() > kill_at):
            _signal(script.pid, signal.SIGKILL)
    with state() as known:
        job = known["jobs"][number]
        if job["state"] == "RUNNING":
            job["state"] = "COMPLETED" if script.returncode == 0 else "FAILED"


def _given(number: str) -> bool:
    """Whether a job need not wait any more: it was given its GPUs, or cancelled."""
    with state() as known:
        job = known["jobs"][number]
        allocated = dict[str, list[int]]()
        for group in job["groups"]:
            for name in group["nodes"]:
                node = known["nodes"][name]
                busy = {
                    gpu
                    for one in known["jobs"].values()
                    if one["state"] == "RUNNING"
                    for gpu in one["given"].get(name, [])
                }
                free = [gpu for gpu in range(node["gpus"]) if gpu not in busy]
                if node["state"] != "IDLE" or len(free) < group["gpus"]:
                    return bool(job["state"] != "PENDING")
                allocated[name] = free[-group["gpus"] :]
        if job["state"] == "PENDING":
            job["state"], job["given"] = "RUNNING", allocated
        return True


def srun(words: list[str]) -> None:
    """Start a task on each node, with what a task of Slurm finds in its environment."""
    with state() as known:
        allocated: dict[str, list[int]] = known["jobs"][os.environ["SLURM_JOB_ID"]]["given"]
    options = dict(word[2:].partition("=")[::2] for word in words[: words.index("sh")])
    names = sorted(options["nodelist"].split(",") if "nodelist" in options else allocated)
    tasks = [
        subprocess.Popen(
            words[words.index("sh") :],
            start_new_session=True,
            env={
                **os.environ,
                "SLURMD_NODENAME": name,
                "SLURM_PROCID": str(place),
                "CUDA_VISIBLE_DEVICES": ",".join(map(str, allocated[name])),
            },
        )
        for place, name in enumerate(names)
    ]
    here = HOME / "tasks" / os.environ["SLURM_JOB_ID"]
    here.mkdir(parents=True)
    for name, task in zip(names, tasks, strict=True):
        (here / name).write_text(str(task.pid))
    codes = [task.wait() for task in tasks]
    for name in names:
        (here / name).unlink()
    for place, code in enumerate(codes):
        if code:
            print(f"srun: error: {names[place]}: task {place}: Exited with exit code {code}", file=sys.stderr)
    sys.exit(max(abs(code) for code in codes))


def squeue(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="squeue")
    for flag in ("--me", "--noheader"):
        parser.add_argument(flag, action="store_true", required=True)
    parser.add_argument("--states", choices=["all"], required=True)
    parser.add_argument("--format", choices=["%T|%N|%j"], required=True)
    parser.add_argument("--name")
    options = parser.parse_args(words)
    with state() as known:
        for job in known["jobs"].values():
            if options.name in (None, job["name"]):
                for group in job["groups"]:
                    nodes = ",".join(group["nodes"]) if job["given"] else ""
                    print(job["state"], nodes, job["name"], sep="|")


def scancel(words: list[str]) -> None:
    options = dict(word[2:].partition("=")[::2] for word in words)
    with state() as known:
        for number, job in known["jobs"].items():
            chosen = job["name"] == options["name"] and job["state"] in (
                options.get("state") or "PENDING RUNNING"
            )
            if not chosen or job["state"] not in ("PENDING", "RUNNING"):
                continue
            if "signal" not in options:
                job["state"] = "CANCELLED"
            elif (HOME / "tasks" / number).exists():
                for path in (HOME / "tasks" / number).iterdir():
                    _signal(int(path.read_text()), signal.Signals[f"SIG{options['signal']}"])


def _signal(root: int, number: signal.Signals) -> None:
    """Send a signal to a process and to all that it has started, as Slurm does."""
    for process in [root, *descendants(root)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def descendants(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(
                int(path.parent.name)
            )
    processes = list(parents.get(root, []))
    for process in processes:
        processes += parents.get(process, [])
    return processes


def scontrol(words: list[str]) -> None:
    assert words == ["show", "nodes", "--oneliner"], words
    with state() as known:
        for name, node in known["nodes"].items():
            gres = node.get("gres", f"gpu:{node['gpus']}")
            reason = " Reason=for State=IDLE [root@2026-11-17T19:06:00]" if node["state"] != "IDLE" else ""
            features = node.get("features", "(null)")
            partitions = node.get("partitions", "gpu")
            print(
                NODE.format(
                    name=name,
                    state=node["state"],
                    gres=gres,
                    features=features,
                    partitions=partitions,
                    reason=reason,
                )
            )


def main(command: str, *words: str) -> None:
    if (HOME / "down").exists() and command not in ("supervise", "srun"):
        subject = {
            "sbatch": "sbatch: error: Batch job submission failed:",
            "squeue": "slurm_load_jobs error:",
            "scontrol": "slurm_load_node error:",
            "scancel": "scancel: error:",
        }
        sys.exit(f"{subject[command]} {SILENT}")
    globals()[command](list(words))


if __name__ == "__main__":
    main(*sys.argv[1:])
