"""What is Kubernetes' own: the Jobs that runs become, gangs, how pods end, and who we are there."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live.backend import JobCommand, MachineStatus, RunKey, RunPart, RunStatus
from astrarium.cluster.live.backends.kubernetes.api_server import found_server
from astrarium.cluster.live.backends.kubernetes.backend import GPU, HOST, KubernetesBackend
from astrarium.cluster.live.backends.kubernetes.options import KubernetesOptions
from astrarium.core.errors import InputError
from tests.support.cluster.backend import order, seen, words
from tests.support.cluster.hosts import waited
from tests.support.cluster.jobs import arbiter, check_accounts, results
from tests.support.cluster.sites.kubernetes import REQUIRED, FakeKubernetes

pytest_plugins = ("tests.support.cluster.fixtures",)
KEY = RunKey(0, 0, 1)
TRUE = JobCommand(("true",))


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cluster that somebody may have here."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))


@pytest.fixture
def site() -> Iterator[FakeKubernetes]:
    one = FakeKubernetes({"left": {"gpus": 2}, "right": {"gpus": 2}})
    yield one
    one.close()


def objects(site: FakeKubernetes, kind: str) -> list[Any]:
    return [body for method, url, body in list(site.calls) if method == "POST" and url.endswith(f"/{kind}")]


def test_nodes_that_take_pods_are_machines(home: Path) -> None:
    zone = "topology.kubernetes.io/zone"
    one = FakeKubernetes({
        "a": {"gpus": 4, "labels": {zone: "rack-7", "row": "3", HOST: "a.lab"}}, "b": {"gpus": 2},
        "cordoned": {"gpus": 2, "unschedulable": True}, "silent": {"gpus": 2}, "plain": {"gpus": 0},
    })  # fmt: skip
    try:
        one.lose("silent")
        assert one.backend(home).look().machines == {"a": MachineStatus(4, rack=7), "b": MachineStatus(2)}
        assert one.backend(home, 2, options={"rack_label": "row"}).look().machines["a"].rack == 3
    finally:
        one.close()


def test_a_run_is_a_job_held_to_its_machines(site: FakeKubernetes, home: Path) -> None:
    options: dict[str, Any] = {"volume": "data/jobs", "namespace": "lab", "requests": {"memory": "32Gi"},
               "pod": {"serviceAccountName": "trainer"}, "image": "registry/train:1"}  # fmt: skip
    one = KubernetesBackend(home, KubernetesOptions(**options), site.address, grace=20.0, scan=0.1)
    one.enter(1)
    one.start(order(1, TRUE, (0, 2), (RunPart("left", (0,)), RunPart("right", (0,)))))
    assert seen(one, 1).ended == "finished"
    one.close()
    [job] = objects(site, "jobs")
    spec = job["spec"]
    pod = job["spec"]["template"]["spec"]
    assert any(url.startswith("/apis/batch/v1/namespaces/lab/jobs") for _, url, _ in site.calls)
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert (spec["backoffLimit"], spec["suspend"], pod["restartPolicy"]) == (0, False, "Never")
    labels = job["metadata"]["labels"]
    assert [labels[f"astrarium/{name}"] for name in ("app", "job", "run")] == ["0", "0", "1"]
    [term] = pod["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": HOST, "operator": "In", "values": ["left", "right"]}]
    [container] = pod["containers"]
    assert container["resources"]["limits"] == {GPU: "1", "memory": "32Gi"}
    assert container["volumeMounts"] == [{"name": "jobs", "mountPath": str(home), "subPath": "jobs"}]
    assert pod["volumes"] == [{"name": "jobs", "persistentVolumeClaim": {"claimName": "data"}}]
    assert pod["serviceAccountName"] == "trainer"
    assert pod["terminationGracePeriodSeconds"] > 20
    [service] = objects(site, "services")
    assert service["spec"]["clusterIP"] == "None"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert one.address(order(1, TRUE, (0, 2), (RunPart("left", (0,)), RunPart("right", (0,))))) == (
        f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    )


def test_parts_of_unequal_size_are_several_jobs(site: FakeKubernetes, home: Path) -> None:
    code = "import os; print(os.environ['RANK'], os.environ['CUDA_VISIBLE_DEVICES'])"
    one = site.backend(home)
    parts = (RunPart("right", (0, 1)), RunPart("left", (1,)))
    one.start(order(1, JobCommand((sys.executable, "-c", code)), (2, 3, 1), parts))
    assert seen(one, 1).ended == "finished"
    pods = [job["spec"]["template"]["spec"] for job in objects(site, "jobs")]
    assert [pod["containers"][0]["resources"]["limits"][GPU] for pod in pods] == ["2", "1"]
    logs = sorted(home.glob("apps/*/*/*/part-*/log-*.txt"))
    assert [path.read_text() for path in logs] == ["0 0,1\n", "1 0\n"]


def test_a_gang_waits_in_a_queue_of_kueue(site: FakeKubernetes, home: Path) -> None:
    site.admits = False
    one = site.backend(home, options={"gang": "kueue", "queue": "team"})
    one.start(order(1, TRUE))
    [job] = waited(lambda: objects(site, "jobs"))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert site.held["jobs"][job["metadata"]["name"]]["spec"]["suspend"]
    assert one.look().runs == {KEY: RunStatus((0,))}
    site.admits = True
    assert seen(one, 1).ended == "finished"


def test_a_gang_of_volcano_is_a_pod_group(site: FakeKubernetes, home: Path) -> None:
    one = site.backend(home, options={"gang": "volcano", "queue": "team"})
    one.start(order(1, TRUE, (0, 2), (RunPart("left", (0,)), RunPart("right", (0,)))))
    assert seen(one, 1).ended == "finished"
    [group], [job] = objects(site, "podgroups"), objects(site, "jobs")
    assert group["spec"] == {"minMember": 2, "queue": "team"}
    template = job["spec"]["template"]
    assert template["spec"]["schedulerName"] == "volcano"
    assert template["metadata"]["annotations"] == {"scheduling.k8s.io/group-name": group["metadata"]["name"]}
    one.forget(KEY)
    waited(lambda: not any(site.held[kind] for kind in ("jobs", "pods", "services", "podgroups")))


def test_what_was_made_before_is_left_alone(site: FakeKubernetes, home: Path, tmp_path: Path) -> None:
    """The arbiter before has died before it could see that its Job was made."""
    code = "import time; open('times', 'a').write('x'); time.sleep(1)"
    ordered = order(1, JobCommand((sys.executable, "-c", code), directory=str(tmp_path)))
    one = site.backend(home)
    one.start(ordered)
    waited(lambda: (tmp_path / "times").exists())
    one.submit(ordered)
    assert seen(one, 1).ended == "finished"
    assert len(objects(site, "jobs")) == 2
    assert len(site.held["jobs"]) == 1
    assert (tmp_path / "times").read_text() == "x"


@pytest.mark.parametrize(
    "trouble", [(503, "apiserver is shutting down"), (410, "too old"), (401, "Unauthorized")]
)
def test_while_the_server_does_not_answer_nothing_is_lost(
    site: FakeKubernetes, home: Path, script: Path, trouble: Any
) -> None:
    one = site.backend(home)
    one.start(order(1, JobCommand(words(script, 60, 0.05))))
    seen(one, 1, lambda run: run.progress > 0.05)
    site.broken = dict.fromkeys(("GET", "POST", "DELETE"), trouble)
    before = one.look()
    now = waited(
        lambda: (snapshot := one.look()).runs[KEY].progress > before.runs[KEY].progress + 0.1 and snapshot
    )
    assert now.machines == before.machines
    one.stop(KEY)  # is heard through its folder
    assert seen(one, 1).ended == "stopped"
    one.start(order(2, TRUE, (2,), (RunPart("right", (0,)),)))
    asked = len(site.calls)
    waited(lambda: one.look().runs[RunKey(0, 0, 2)].ended == "" and len(site.calls) > asked + 3)
    site.broken = {}
    assert seen(one, 2).ended == "finished"


def test_a_job_that_is_not_taken_has_failed_in_the_servers_words(site: FakeKubernetes, home: Path) -> None:
    one = site.backend(home)
    site.broken = {"POST": (422, 'Job.batch "x" is invalid: spec.template')}
    one.start(order(1, TRUE))
    assert seen(one, 1) == RunStatus((0,), "failed", error='422 Job.batch "x" is invalid: spec.template')


def test_an_image_that_cannot_be_pulled_is_told(site: FakeKubernetes, home: Path) -> None:
    site.reason = "ImagePullBackOff"
    one = site.backend(home)
    one.start(order(1, TRUE))
    assert seen(one, 1) == RunStatus((0,), "failed", error="ImagePullBackOff: Back-off pulling image")
    one.forget(KEY)
    waited(lambda: not site.held["pods"])


@pytest.mark.parametrize(
    ("status", "code", "ended", "expected"),
    [({}, 137, "failed", "OOMKilled, exit code 137"),
     ({"reason": "Evicted", "message": "low on memory"}, 137, "lost", "Kubernetes: Evicted: low on memory"),
     ({"conditions": [{"type": "DisruptionTarget", "status": "True"}]}, 137, "lost",
      "Kubernetes: OOMKilled, exit code 137")],
)  # fmt: skip
def test_how_a_pod_without_an_outcome_ended(
    site: FakeKubernetes, home: Path, status: Any, code: int, ended: str, expected: str
) -> None:
    one = site.backend(home)
    one.start(order(1, JobCommand(("sleep", "600"))))
    waited(lambda: list(home.glob("apps/*/*/*/part-0/log-0.txt")))
    [name] = site.held["pods"]
    pod = site.held["pods"][name]
    site.lose_process(name)
    pod["status"].update(status)
    site.end(pod, code, "OOMKilled")
    seen_status = seen(one, 1)
    assert (seen_status.ended, seen_status.error) == (ended, expected)


def test_a_pod_that_somebody_deletes_writes_its_checkpoint(
    site: FakeKubernetes, home: Path, script: Path
) -> None:
    one = site.backend(home)
    one.start(order(1, JobCommand(words(script, 60, 0.05))))
    seen(one, 1, lambda run: run.progress > 0.1)
    one.ask(KEY)
    status = seen(one, 1)
    assert (status.ended, status.error, status.kept > 0.1) == ("lost", "Kubernetes has ended it", True)


def kubeconfig(path: Path, server: str, user: str) -> None:
    path.write_text(
        f"current-context: here\ncontexts: [{{name: here, context: {{cluster: c, user: u}}}}]\n"
        f"clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\nusers: [{{name: u, user: {user}}}]\n"
    )


def test_the_server_is_found_as_kubectl_finds_it(site: FakeKubernetes, home: Path, tmp_path: Path) -> None:
    site.tokens = {"secret"}
    kubeconfig(tmp_path / "config", site.address, "{token: secret}")
    one = KubernetesBackend(home, KubernetesOptions("image", "claim"))
    one.enter(1)
    assert set(one.look().machines) == {"left", "right"}
    one.close()
    (tmp_path / "token").write_text("another\n")
    kubeconfig(tmp_path / "config", site.address, "{tokenFile: token}")
    with pytest.raises(
        InputError, match=r"live\.backend: expected a Kubernetes that answers \(401 Unauthorized\)"
    ):
        KubernetesBackend(home, KubernetesOptions("image", "claim")).enter(2)


@pytest.mark.parametrize(
    ("user", "expected"),
    [("", r"live\.backend: expected a kubeconfig with a current context"),
     ("{exec: {command: aws}}", r"live\.address: expected the address of `kubectl proxy`")],
)  # fmt: skip
def test_who_cannot_be_known_is_told(tmp_path: Path, user: str, expected: str) -> None:
    if user:
        kubeconfig(tmp_path / "config", "https://127.0.0.1:1", user)
    with pytest.raises(InputError, match=expected):
        found_server()


def test_addresses_are_urls() -> None:
    with pytest.raises(InputError, match=r"live\.address: expected a URL"):
        found_server("10.0.0.1:6443")


def test_a_pod_knows_the_server_of_its_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    monkeypatch.setattr("astrarium.cluster.live.backends.kubernetes.api_server.ACCOUNT", tmp_path)
    (tmp_path / "token").write_text("first")
    server = found_server()
    assert (server.url, server.token()) == ("https://[fd00::1]:6443", "first")
    (tmp_path / "token").write_text("renewed")
    assert server.token() == "renewed"


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"gang": "kueue"}, "queue"), ({"queue": "x"}, "queue"), ({"image": ""}, "image"),
     ({"pod": {"volumes": []}}, r"pod\.volumes")],
)  # fmt: skip
def test_options_that_cannot_be(changes: Any, field: str) -> None:
    with pytest.raises(InputError, match=f"^{field}: expected"):
        KubernetesOptions(**{"image": "image", "volume": "claim", **changes})


TEXT = """\
machines: [{{count: 2, gpus: 2}}]
apps:
  - {{name: wide, gpus: 4, length: 3s, command: {command} 60 0.05}}
  - {{name: small, count: 2, every: 1s, length: 3s, arrival: 1s, command: {command} 40 0.05}}
policy: {{name: tiresias, lease: 4s}}
live: {{backend: kubernetes, address: "{address}", patience: 2s, least: 500ms,
       kubernetes: {{image: train, volume: jobs}}}}
"""


@pytest.mark.thorough
def test_an_arbiter_that_is_killed_and_drained_on_kubernetes(
    site: FakeKubernetes, home: Path, script: Path, tmp_path: Path
) -> None:
    file = tmp_path / "kubernetes.yaml"
    file.write_text(TEXT.format(command=shlex.join([sys.executable, str(script)]), address=site.address))
    with arbiter(file, home) as one:
        one.start()
        one.waited(lambda: list(home.glob("apps/*/job-*/run-*/ready")), "a job runs")
        one.kill()
        one.start()
        one.waited(
            lambda: one.query("SELECT * FROM meta WHERE key = 'epoch' AND value = 2"), "another arbiter"
        )
        one.waited(lambda: one.query("SELECT * FROM runs WHERE outcome IN ('stopped', 'finished')"), "an end")
        assert one.send(signal.SIGINT) == 0, one.words.read_text()
        one.start()
        one.end()
        check_accounts(one)
    counts = {("wide", 0): 60, ("small-0", 0): 40, ("small-1", 0): 40}
    assert results(home) == {
        key: {"sum": sum(n * n for n in range(total)), "count": total} for key, total in counts.items()
    }
