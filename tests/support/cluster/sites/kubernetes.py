"""A small Kubernetes on the loopback device: an API server, and all that works on what it holds.

Its answers have the shape that the API of Kubernetes 1.29 gives them (lists, statuses, conditions). Pods are
really run, as processes of this machine, when a node in their affinity has room for them. Tests make nodes
vanish, calls fail, and containers end as they like.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from astrarium.cluster.live.backends.kubernetes.backend import GPU, HOST, KubernetesBackend
from astrarium.cluster.live.backends.kubernetes.options import KubernetesOptions
from tests.support.cluster.sites.slurm_commands import descendants

NOW = "2026-11-17T19:06:00Z"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
KINDS = {"jobs": "Job", "pods": "Pod", "services": "Service", "podgroups": "PodGroup", "nodes": "Node"}
PATH = re.compile(r"/(?:api|apis/[\w.]+)/\w+(?:/namespaces/([\w-]+))?/(\w+)(?:/([\w.-]+))?$")


class FakeKubernetes:
    """*broken*: the codes and reasons of the calls to come, by method; *admits*: whether suspended Jobs are
    let in, as Kueue does; *reason*: why containers do not start, if they do not."""

    def __init__(self, nodes: dict[str, dict[str, Any]]) -> None:
        self.held: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        self.calls: list[tuple[str, str, Any]] = []
        self.broken: dict[str, tuple[int, str]] = {}
        self.admits = True
        self.reason = ""
        self.tokens = {""}
        for name, facts in nodes.items():
            self.held["nodes"][name] = _node(name, **facts)
        self._lock = threading.RLock()
        self._backends = list[KubernetesBackend]()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._over = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"site": self}))
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._threads = [
            threading.Thread(target=self._server.serve_forever, args=(0.05,)),
            threading.Thread(target=self._control),
        ]
        for thread in self._threads:
            thread.start()

    def backend(
        self, home: Path, epoch: int = 1, *, grace: float = 20.0, options: Any = None, **others: Any
    ) -> KubernetesBackend:
        settings = KubernetesOptions("image", "claim", **(options or {}))
        one = KubernetesBackend(
            home, settings, self.address, grace=grace, **{"patience": 1.0, "scan": 0.1, **others}
        )
        self._backends.append(one)
        one.enter(epoch)
        return one

    def lose(self, machine: str) -> None:
        """The node falls silent, and what runs there is not heard of any more: its pods stay as they are."""
        with self._lock:
            self.held["nodes"][machine]["status"]["conditions"][0]["status"] = "Unknown"
            for name, pod in self.held["pods"].items():
                if pod["spec"].get("nodeName") == machine and name in self._processes:
                    self.lose_process(name)

    def lose_process(self, name: str) -> None:
        """What a pod runs is gone, and nobody has told of it yet."""
        with self._lock:
            process = self._processes.pop(name)
            self._signal(process.pid, signal.SIGKILL)
            process.wait()

    def occupy(self, machine: str, gpus: int) -> None:
        pod = {"metadata": {"name": "other", "labels": {}}, "status": {"phase": "Running"}}
        limits = {"resources": {"limits": {GPU: str(gpus)}}}
        self.held["pods"]["other"] = {**pod, "spec": {"nodeName": machine, "containers": [limits]}}

    def close(self) -> None:
        for one in self._backends:
            one.close()
        self._over = True
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()
        for process in self._processes.values():
            self._signal(process.pid, signal.SIGKILL)
            process.wait()

    def answer(self, method: str, url: str, body: Any, token: str) -> tuple[int, Any]:
        with self._lock:
            split = urllib.parse.urlsplit(url)
            query = dict(urllib.parse.parse_qsl(split.query))
            self.calls.append((method, url, body))
            if method in self.broken:
                return _failure(*self.broken[method])
            if token not in self.tokens:
                return _failure(401, "Unauthorized")
            match = PATH.match(split.path)
            if match is None or match[2] not in self.held:
                return _failure(404, "the server could not find the requested resource")
            verb = {"GET": self._get, "POST": self._post, "DELETE": self._delete}[method]
            return verb(match[2], match[3], query, body)

    def _get(self, kind: str, name: str | None, query: dict[str, str], body: Any) -> tuple[int, Any]:
        items = [json.loads(json.dumps(item)) for item in self.held[kind].values() if _chosen(item, query)]
        return 200, {
            "kind": f"{KINDS[kind]}List",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": "1"},
            "items": items,
        }

    def _post(self, kind: str, name: str | None, query: dict[str, str], body: Any) -> tuple[int, Any]:
        name = str(body["metadata"]["name"])
        assert body["kind"] == KINDS[kind]
        assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name), "a name of Kubernetes"
        assert len(name) <= 60, "an index follows"
        if name in self.held[kind]:
            return _failure(409, f'{kind} "{name}" already exists', "AlreadyExists")
        self.held[kind][name] = {**body, "status": {}}
        return 201, self.held[kind][name]

    def _delete(self, kind: str, name: str | None, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if name is not None and name not in self.held[kind]:
            return _failure(404, f'{kind} "{name}" not found', "NotFound")
        for item in [item for item in self.held[kind].values() if _chosen(item, query, name)]:
            how = query.get("propagationPolicy") or query.get("gracePeriodSeconds", "")
            if (kind, how) in (("jobs", "Foreground"), ("pods", "")):
                item["metadata"]["deletionTimestamp"] = NOW
            else:
                del self.held[kind][item["metadata"]["name"]]
        return 200, {"kind": "Status", "status": "Success"}

    def _control(self) -> None:
        while not self._over:
            with self._lock:
                for job in list(self.held["jobs"].values()):
                    self._tend(job)
                for name, pod in list(self.held["pods"].items()):
                    self._run(name, pod)
                for name in self._processes.keys() - self.held["pods"].keys():
                    self._signal(self._processes.pop(name).pid, signal.SIGKILL)
            time.sleep(0.02)

    def _tend(self, job: Any) -> None:
        name = job["metadata"]["name"]
        spec = job["spec"]
        mine = [
            pod for pod in self.held["pods"].values() if pod["metadata"]["labels"].get("job-name") == name
        ]
        if "deletionTimestamp" in job["metadata"]:
            for pod in mine:
                pod["metadata"]["deletionTimestamp"] = NOW
            if not mine:
                del self.held["jobs"][name]
        elif spec["suspend"]:
            spec["suspend"] = not self.admits
        elif not mine and not job["status"]:
            for index in range(spec["completions"]):
                pod = _pod(name, index, spec["template"])
                self.held["pods"][pod["metadata"]["name"]] = pod
        phases = {pod["status"]["phase"] for pod in mine}
        if mine and phases <= {"Succeeded", "Failed"}:
            ended = "Failed" if "Failed" in phases else "Complete"
            reason = {"reason": "BackoffLimitExceeded"} if ended == "Failed" else {}
            job["status"] = {"conditions": [{"type": ended, "status": "True", **reason}]}

    def _run(self, name: str, pod: Any) -> None:
        status = pod["status"]
        process = self._processes.get(name)
        deleted = "deletionTimestamp" in pod["metadata"]
        if status["phase"] == "Pending" and deleted:
            del self.held["pods"][name]
        elif status["phase"] == "Pending":
            self._place(name, pod)
        elif process is not None and process.poll() is not None:
            del self._processes[name]
            code = process.returncode if process.returncode >= 0 else 128 - process.returncode
            self.end(pod, code, "Completed" if code == 0 else "Error")
        elif process is not None and deleted and not pod.get("told"):
            pod["told"] = True
            process.send_signal(signal.SIGTERM)
        if status["phase"] in ("Succeeded", "Failed") and deleted:
            self.held["pods"].pop(name, None)

    def end(self, pod: Any, code: int, reason: str) -> None:
        pod["status"]["phase"] = "Succeeded" if code == 0 else "Failed"
        ended = {"terminated": {"exitCode": code, "reason": reason, "startedAt": NOW, "finishedAt": NOW}}
        pod["status"]["containerStatuses"] = [{"name": "job", "state": ended, "restartCount": 0}]

    def _place(self, name: str, pod: Any) -> None:
        spec = pod["spec"]
        [term] = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
        [hosts] = term["matchExpressions"]
        apart = spec["affinity"]["podAntiAffinity"][REQUIRED][0]["labelSelector"]["matchLabels"]
        wants = int(spec["containers"][0]["resources"]["limits"][GPU])
        for node in self.held["nodes"].values():
            there = [
                one
                for one in self.held["pods"].values()
                if one["spec"].get("nodeName") == node["metadata"]["name"]
                and one["status"]["phase"] == "Running"
            ]
            used = sum(int(one["spec"]["containers"][0]["resources"]["limits"][GPU]) for one in there)
            free = int(node["status"]["allocatable"][GPU]) - used >= wants
            alone = not any(apart.items() <= one["metadata"]["labels"].items() for one in there)
            if node["metadata"]["labels"][HOST] in hosts["values"] and free and alone:
                self._launch(name, pod, node["metadata"]["name"])
                return

    def _launch(self, name: str, pod: Any, node: str) -> None:
        if self.reason:
            state = {"waiting": {"reason": self.reason, "message": "Back-off pulling image"}}
            pod["spec"]["nodeName"] = node
            pod["status"]["containerStatuses"] = [{"name": "job", "state": state}]
            return
        pod["spec"]["nodeName"], pod["status"]["phase"] = node, "Running"
        pod["status"]["containerStatuses"] = [{"name": "job", "state": {"running": {"startedAt": NOW}}}]
        index = pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
        self._processes[name] = subprocess.Popen(
            pod["spec"]["containers"][0]["command"],
            env={**os.environ, "JOB_COMPLETION_INDEX": index},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _signal(self, root: int, number: signal.Signals) -> None:
        for process in (root, *descendants(root)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


class _Handler(BaseHTTPRequestHandler):
    site: FakeKubernetes
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        code, answer = self.site.answer(self.command, self.path, body, token)
        data = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_DELETE = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _failure(code: int, message: str, reason: str = "") -> tuple[int, Any]:
    return code, {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def _chosen(one: Any, query: dict[str, str], name: str | None = None) -> bool:
    labels = one["metadata"]["labels"]
    pairs = [pair.partition("=") for pair in query.get("labelSelector", "").split(",") if pair]
    return name in (None, one["metadata"]["name"]) and all(
        labels.get(key) == value for key, _, value in pairs
    )


def _node(name: str, gpus: int, labels: dict[str, str] | None = None, unschedulable: bool = False) -> Any:
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": NOW}
    sizes = {"cpu": "16", "memory": "65831220Ki", "pods": "110", GPU: str(gpus)}
    return {
        "metadata": {"name": name, "labels": {HOST: name, "kubernetes.io/arch": "amd64", **(labels or {})}},
        "spec": {"unschedulable": True} if unschedulable else {},
        "status": {"capacity": sizes, "allocatable": sizes, "conditions": [ready]},
    }


def _pod(job: str, index: int, template: Any) -> Any:
    ours = {"batch.kubernetes.io/job-completion-index": str(index), "job-name": job}
    meta = {"name": f"{job}-{index}-x7k2p", "labels": {**template["metadata"]["labels"], **ours}}
    spec = json.loads(json.dumps(template["spec"]))
    return {"metadata": meta, "spec": spec, "status": {"phase": "Pending", "conditions": []}}
