"""This backend runs jobs on the machines of a Kubernetes cluster.

A run is an Indexed Job whose pods are held to the machines that the policy chose, one on each: number i runs
part i. Parts with unequal numbers of GPUs make several Jobs. Every pod has the folder of all jobs at the path
that the arbiter knows it by, and runs a keeper from there; how it ended is told by its folder.
"""

from __future__ import annotations

import re
import shlex
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Unpack

from astrarium.cluster.live.backend import MachineStatus, Order, RunKey
from astrarium.cluster.live.backends.kubernetes.api_server import Missing, Taken, found_server
from astrarium.cluster.live.backends.kubernetes.options import KubernetesOptions
from astrarium.cluster.live.backends.site import KEEPER, SiteBackend, SiteJob, SiteOptions, SiteView
from astrarium.cluster.live.machine.folders import order_folder
from astrarium.cluster.live.machine.keeping.records import OUTCOME

HOST = "kubernetes.io/hostname"
GPU = "nvidia.com/gpu"
KEPT = 24 * 3600  # seconds that Kubernetes remembers a Job that nobody removes
NO_IMAGE = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
NO_CONTAINER = NO_IMAGE | {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
JOBS = "/apis/batch/v1/{}/jobs"
PODS = "/api/v1/{}/pods"
SERVICES = "/api/v1/{}/services"
GROUPS = "/apis/scheduling.volcano.sh/v1beta1/{}/podgroups"


class KubernetesBackend(SiteBackend):
    """A backend on the machines of a Kubernetes cluster, which is found as `kubectl` finds it."""

    name = "Kubernetes"
    kind = "kubernetes"

    def __init__(
        self, home: Path, options: KubernetesOptions, address: str = "", **site: Unpack[SiteOptions]
    ) -> None:
        super().__init__(home, **site)
        self._options = options
        self._api = found_server(address)
        self._hosts: dict[str, str] = {}  # labels by which pods are held to machines
        self.reach()

    def poll(self) -> SiteView:
        nodes = [node for node in self._api.call("GET", "/api/v1/nodes")["items"] if _gpus(node)]
        self._hosts = {_name(node): node["metadata"]["labels"].get(HOST, _name(node)) for node in nodes}
        there = {_name(node): self._machine(node) for node in nodes if _takes_pods(node)}
        silent = {_name(node) for node in nodes if not _ready(node)}
        return SiteView(there, self._jobs(silent))

    def submit(self, order: Order) -> None:
        name = self.run_name(order.key)
        labels = self._labels(order.key)
        body = {"metadata": {"name": name, "labels": labels}}
        if len(order.active) > 1:
            spec = {"clusterIP": "None", "selector": labels, "publishNotReadyAddresses": True}
            self._make(SERVICES, {"apiVersion": "v1", "kind": "Service", **body, "spec": spec})
        if self._options.gang == "volcano":
            queue = {"queue": self._options.queue} if self._options.queue else {}
            kind = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup"}
            self._make(GROUPS, {**kind, **body, "spec": {"minMember": len(order.parts), **queue}})
        for job in self._made(order):
            self._make(JOBS, job)

    def ask(self, key: RunKey) -> None:
        self._delete(JOBS, key, propagationPolicy="Foreground")

    def kill(self, key: RunKey) -> None:
        self._delete(JOBS, key, propagationPolicy="Background")
        self._delete(PODS, key, gracePeriodSeconds="0")

    def remove(self, key: RunKey) -> None:
        """Remove all of a run; a pod on a machine that is gone stays until somebody says that it is."""
        self.kill(key)
        for path in (SERVICES, *([GROUPS] if self._options.gang == "volcano" else [])):
            with suppress(Missing):
                self._api.call("DELETE", f"{self._path(path)}/{self.run_name(key)}")

    def address(self, order: Order) -> str:
        name = self.run_name(order.key)
        return f"{name}-0-0.{name}" if len(order.active) > 1 else "127.0.0.1"

    def _path(self, path: str) -> str:
        return path.format(f"namespaces/{self._options.namespace}")

    def _labels(self, key: RunKey) -> dict[str, str]:
        numbers = {f"astrarium/{name}": str(value) for name, value in key._asdict().items()}
        return {"astrarium/home": self.prefix, **numbers}

    def _make(self, path: str, body: object) -> None:
        with suppress(Taken):
            self._api.call("POST", self._path(path), body)

    def _delete(self, path: str, key: RunKey, **how: str) -> None:
        self._api.call("DELETE", self._path(path), labelSelector=_selector(self._labels(key)), **how)

    def _made(self, order: Order) -> Iterator[dict[str, Any]]:
        """Yield the Jobs of a run: one for each number of GPUs that a pod may have."""
        groups: dict[int, list[int]] = {}
        for place, part in enumerate(order.parts):
            groups.setdefault(len(part.gpus), []).append(place)
        for number, (gpus, places) in enumerate(groups.items()):
            labels = self._labels(order.key)
            kueue = self._options.gang == "kueue"
            queued = {**labels, "kueue.x-k8s.io/queue-name": self._options.queue} if kueue else labels
            count = len(places)
            yield {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": f"{self.run_name(order.key)}-{number}", "labels": queued},
                "spec": {
                    "completionMode": "Indexed", "completions": count, "parallelism": count,
                    "backoffLimit": 0, "ttlSecondsAfterFinished": KEPT, "suspend": kueue,
                    "template": {
                        "metadata": {"labels": labels, **self._grouped(order)},
                        "spec": self._pod(order, gpus, places),
                    },
                },
            }  # fmt: skip

    def _grouped(self, order: Order) -> dict[str, Any]:
        volcano = self._options.gang == "volcano"
        return {"annotations": {"scheduling.k8s.io/group-name": self.run_name(order.key)}} if volcano else {}

    def _pod(self, order: Order, gpus: int, places: Sequence[int]) -> dict[str, Any]:
        options = self._options
        run = order_folder(self.home, order)
        claim, _, folder = options.volume.partition("/")
        mount = {"name": "jobs", "mountPath": str(self.home), **({"subPath": folder} if folder else {})}
        resources = {**options.requests, GPU: str(gpus)}
        container = {
            "name": "job", "image": options.image, "command": ["sh", "-c", self._command(order, run, places)],
            "resources": {"requests": resources, "limits": resources}, "volumeMounts": [mount],
        }  # fmt: skip
        return {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": self.grace.pod,
            "affinity": self._affinity(order, places),
            "tolerations": [{"key": GPU, "operator": "Exists"}],
            "volumes": [{"name": "jobs", "persistentVolumeClaim": {"claimName": claim}}],
            **({"subdomain": self.run_name(order.key)} if len(order.active) > 1 else {}),
            **({"schedulerName": "volcano"} if options.gang == "volcano" else {}),
            **options.pod,
            "containers": [container],
        }

    def _affinity(self, order: Order, places: Sequence[int]) -> dict[str, Any]:
        """Hold the pods to their machines, one on each."""
        hosts = [self._hosts[order.parts[place].machine] for place in places]
        term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": hosts}]}
        apart = {"labelSelector": {"matchLabels": self._labels(order.key)}, "topologyKey": HOST}
        required = "requiredDuringSchedulingIgnoredDuringExecution"
        return {
            "nodeAffinity": {required: {"nodeSelectorTerms": [term]}},
            "podAntiAffinity": {required: [apart]},
        }

    def _command(self, order: Order, run: Path, places: Sequence[int]) -> str:
        """Return what a pod runs. One whose part has no processes holds its GPUs until those have ended."""
        here = shlex.quote(str(run))
        over = shlex.quote(str(run / "part-0" / OUTCOME))
        keeper = shlex.quote(str(self.home / KEEPER / "__main__.py"))
        hold = f"trap 'exit 0' TERM; while [ ! -e {over} ]; do sleep 1 & wait; done; exit 0"
        return (
            f"set -- {' '.join(map(str, places))}; shift $JOB_COMPLETION_INDEX; "
            f"if [ $1 -ge {len(order.active)} ]; then {hold}; fi; "
            f"exec python3 -I -S {keeper} keep {here}/part-$1"
        )

    def _machine(self, node: Mapping[str, Any]) -> MachineStatus:
        return MachineStatus(_gpus(node), _rack(node["metadata"]["labels"].get(self._options.rack_label, "")))

    def _jobs(self, silent: set[str]) -> dict[RunKey, SiteJob]:
        selector = f"astrarium/home={self.prefix}"
        jobs = self._api.call("GET", self._path(JOBS), labelSelector=selector)["items"]
        pods = self._api.call("GET", self._path(PODS), labelSelector=selector)["items"]
        of_runs: dict[RunKey, tuple[list[Any], list[Any]]] = {}
        for place, objects in enumerate((jobs, pods)):
            for one in objects:
                of_runs.setdefault(_key(one), ([], []))[place].append(one)
        return {key: _site_job(*owned, silent) for key, owned in of_runs.items()}


def _site_job(jobs: Sequence[Any], pods: Sequence[Any], silent: set[str]) -> SiteJob:
    """Return what Kubernetes says of a run by its Jobs and pods; *silent* machines may never tell."""
    began = any(_state(pod).keys() & {"running", "terminated"} for pod in pods)
    waiting = [_state(pod).get("waiting", {}) for pod in pods]
    broken = next((state for state in waiting if state.get("reason") in NO_CONTAINER), None)
    if broken is not None:
        return SiteJob(False, began, f"{broken['reason']}: {broken.get('message', '')}", True)
    if any(pod["spec"].get("nodeName") in silent and _lives(pod) for pod in pods):
        return SiteJob(False, began, "NodeLost")
    if any(map(_lives, pods)) or any(not _finished(job) for job in jobs):
        return SiteJob(True, began)
    ended = [_end(pod) for pod in pods]
    state, failed = next((end for end in ended if end[0]), ("", False))
    return SiteJob(False, began, state or "the Job has ended", failed)


def _state(pod: Mapping[str, Any]) -> dict[str, Any]:
    statuses = pod["status"].get("containerStatuses") or [{}]
    return dict(statuses[0].get("state") or {})


def _lives(pod: Mapping[str, Any]) -> bool:
    return pod["status"].get("phase") in ("Pending", "Running", "Unknown")


def _finished(job: Mapping[str, Any]) -> bool:
    conditions = job.get("status", {}).get("conditions") or []
    return any(
        condition["type"] in ("Complete", "Failed") and condition["status"] == "True"
        for condition in conditions
    )


def _end(pod: Mapping[str, Any]) -> tuple[str, bool]:
    """Return why a pod has ended, and whether of itself: not if it was evicted, or went with its machine."""
    status = pod["status"]
    code = _state(pod).get("terminated", {})
    if status.get("reason"):
        return f"{status['reason']}: {status.get('message', '')}", False
    if not code.get("exitCode"):
        return "", False
    taken = any(
        condition["type"] == "DisruptionTarget" and condition["status"] == "True"
        for condition in status.get("conditions", [])
    )
    return f"{code.get('reason', 'Error')}, exit code {code['exitCode']}", not taken


def _key(one: Mapping[str, Any]) -> RunKey:
    return RunKey(*(int(one["metadata"]["labels"][f"astrarium/{name}"]) for name in RunKey._fields))


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in labels.items())


def _name(node: Mapping[str, Any]) -> str:
    return str(node["metadata"]["name"])


def _gpus(node: Mapping[str, Any]) -> int:
    return int(node["status"].get("allocatable", {}).get(GPU, 0))


def _ready(node: Mapping[str, Any]) -> bool:
    conditions = node["status"].get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _takes_pods(node: Mapping[str, Any]) -> bool:
    """Return whether a node is ready and not cordoned."""
    return _ready(node) and not node["spec"].get("unschedulable")


def _rack(label: str) -> int:
    """Return the number of a rack: that at the end of its name, or one that its name always gives."""
    number = re.search(r"\d+$", label)
    return int(number[0]) if number else zlib.crc32(label.encode()) if label else 0
