"""astrarium serve FILE"""

from __future__ import annotations

from math import prod
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from astrarium.cli.opening import check_served
from astrarium.cli.options import Overrides, ServingFile
from astrarium.core.errors import InputError, read_from
from astrarium.core.quantities import counted

if TYPE_CHECKING:
    from astrarium.server.running import RunningServer
    from astrarium.serving.live.tensors import TensorSpec
    from astrarium.serving.scenario import Scenario
    from astrarium.serving.scenario.server_options import ServerOptions

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


def curl_line(running: RunningServer, address: str, options: ServerOptions) -> str:
    """A request for a model that is loaded, preferably a real one."""

    import msgspec

    from astrarium.serving.live.backends import examples

    cards = [card for card in running.service.cards() if card.state == "READY"]
    card = next((card for card in cards if card.platform != "emulated"), cards[0])
    inputs = [
        {"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": _example(spec, shape)}
        for spec in card.inputs
        for shape in [[1, *examples.shape_of(spec, min)]]
    ]
    body = msgspec.json.encode({"inputs": inputs}).decode()
    trust = f"--cacert {quote(options.tls.cert)} " if options.tls else ""
    key = '-H "Authorization: Bearer $KEY" ' if options.api_keys else ""
    return f"curl -s {trust}{key}{address}/v2/models/{quote(card.name)}/infer -d {quote(body)}"


def _example(spec: TensorSpec, shape: list[int]) -> list[object]:
    low, high = spec.values or (1, 1)
    fill: object = {"BYTES": "hello", "BOOL": True}.get(spec.datatype, min(max(1, low), high))
    return [fill] * prod(shape)
