"""astrarium serve FILE"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astrarium.cli.opening import check_served
from astrarium.cli.options import Overrides, ServingFile
from astrarium.cli.serving.curl_line import curl_line
from astrarium.core.errors import InputError, read_from
from astrarium.core.quantities import counted

if TYPE_CHECKING:
    from astrarium.server.running import RunningServer
    from astrarium.serving.scenario import Scenario

Port = Annotated[int | None, typer.Option(metavar="PORT", help="Instead of the file's; 0 is any free one.")]
Host = Annotated[str | None, typer.Option(metavar="HOST", help="Instead of the file's (127.0.0.1).")]
Record = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Record what the policy hears and decides, for `replay`.")
]
MOST_NAMES = 8  # of models, in one line
Log = Annotated[str | None, typer.Option(metavar="FORM", help="text or json.")]


def serve(
    file: ServingFile,
    override: Overrides = None,
    http: Port = None,
    grpc: Port = None,
    host: Host = None,
    record: Record = None,
    log: Log = None,
) -> None:
    """Serve a scenario: the policy that was simulated, on real processes and the wall clock."""
    server = {"http": http, "grpc": grpc, "host": host, "log": log}
    server["record"] = None if record is None else str(record.absolute())
    options = [f"server.{name}={value}" for name, value in server.items() if value is not None]
    from astrarium.serving.scenario import load

    check_served(file, "are not served; `astrarium run` runs searches and clusters")
    _run(load(file, [*(override or []), *options], serving=True), file)


def _run(scenario: Scenario, source: Path) -> None:
    try:
        from contextlib import ExitStack
        from logging import getLogger

        import uvloop

        from astrarium.run.waiting import waiting
        from astrarium.server.process.logs import start_logging
        from astrarium.server.running import serve as run
    except ImportError as error:
        expected = f"the packages for serving: pip install 'astrarium[serve]' ({error})"
        raise InputError("serve", None, expected) from error
    start_logging(scenario.server.log)
    with ExitStack() as starting:
        starting.enter_context(waiting(_starting(scenario), getLogger("astrarium.server").info))

        def started(running: RunningServer) -> None:
            starting.close()
            _announce(scenario, running)

        with read_from(source):
            uvloop.run(run(scenario, started))


def _starting(scenario: Scenario) -> str:
    names = list(scenario.models)
    shown = ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
    return f"starting {counted(scenario.cluster.size, 'worker')}, which load {shown}"


def _announce(scenario: Scenario, running: RunningServer) -> None:
    """Where it is, and a line that can be pasted into another terminal."""
    scheme = "https" if scenario.server.tls else "http"
    address = f"{scheme}://{running.http.host}:{running.http.port}"
    network = running.service.coordinator.setup.network
    delays = f"control {network.control / 1e6:.2f} ms, response {network.response / 1e6:.2f} ms"
    served = f"{counted(len(scenario.models), 'model')} on {counted(scenario.cluster.size, 'GPU')}"
    print(f"serving {served} with {scenario.policy.name} (planned with {delays})")
    print(f"  HTTP  {address}")
    if running.grpc is not None:
        print(f"  gRPC  {running.grpc.host}:{running.grpc.port}")
    print(f"  {running.service.plan.told_path}")
    if long_way := running.http.always_long():
        named = ", ".join(f"{name} ({why})" for name, why in long_way.items())
        print(f"  the long way, about ten times dearer over HTTP: {named}")
    print(f"  metrics {address}/metrics   timeline {address}/timeline   API {address}/openapi.json")
    print("try:")
    print(f"  {curl_line(running, address, scenario.server)}", flush=True)
