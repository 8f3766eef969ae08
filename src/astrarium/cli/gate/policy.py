"""astrarium gate policy [NAME], astrarium gate policies"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from astrarium.cli.options import Json
from astrarium.cli.output import emit, table
from astrarium.core.errors import AstrariumError, InputError, one_of

if TYPE_CHECKING:
    from astrarium.gate.board import BoardView
from astrarium.cli.gate.options import Gpu, Set, board_of, no_board

DEFAULT = "astrarium"
KERNEL_POLICIES = {
    "streams": "everybody launches at once; what processes without MPS do anyway",
    "stream-priority": "the same, with latency work on streams of higher priority",
    "mps": "the same in processes that share the GPU by MPS",
    "temporal": "one request or iteration at a time, latency requests first",
    "kernel-temporal": "best-effort kernels only while no latency work runs",
    "tick-tock": "forward of one training job beside backward of the other",
    "reef-n": "a short queue of best-effort kernels; those that fit into free SMs and are shorter go beside",
    "orion": "best-effort kernels beside latency work if they are small, short in sum and of another kind",
    "astrarium": "best-effort work up to the delay that requests were seen to bear; learns what harms them",
}

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The policy to use from now on.")]
Wanted = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show one policy and its settings.")]


def policy(name: Name = None, settings: Set = None, gpu: Gpu = 0, json: Json = False) -> None:
    """Show the policy of a GPU's board, or change it for all who share the GPU."""
    from astrarium.gate.board_settings import read_settings
    from astrarium.run.report import struct_as_dict

    board = board_of(gpu)
    if board is None:
        raise AstrariumError(no_board(gpu))
    if name is not None or settings:
        board.change(name, read_settings(settings or []))
    view = board.view()
    everything = struct_as_dict(view)
    shown = {field: everything[field] for field in everything if field in ("path", "policy", "settings")}
    emit(json, shown, _page(view), None)


def policies(name: Wanted = None, json: Json = False) -> None:
    """List the policies of the gate, or describe one."""
    if name is not None:
        describe(name, json)
        return
    listed = {policy: {"summary": summary} for policy, summary in KERNEL_POLICIES.items()}
    titles = {DEFAULT: f"{DEFAULT} (default)"}
    rows = [(titles.get(policy, policy), summary) for policy, summary in KERNEL_POLICIES.items()]
    emit(json, {"policies": listed}, [table("kernel policy", "what it does", rows=rows)], None)


def describe(name: str, json: bool) -> None:
    from rich.text import Text

    if name not in KERNEL_POLICIES:
        raise InputError("kernel policy", name, one_of(list(KERNEL_POLICIES), name))
    own = _settings_of(name)
    title = Text(f"{name}: {KERNEL_POLICIES[name]}", style="bold")
    shown = {"name": name, "summary": KERNEL_POLICIES[name], "settings": own}
    emit(json, shown, [title, table("setting", "meaning", rows=own.items())], None)


def _settings_of(policy: str) -> dict[str, str]:
    """The settings that are this policy's own, with what they mean."""
    from astrarium.gate.board_settings import settings_table

    prefix = f"{policy}: "
    meanings = {name: setting.about for name, setting in settings_table().items()}
    return {
        name: meaning.removeprefix(prefix) for name, meaning in meanings.items() if meaning.startswith(prefix)
    }


def _page(view: BoardView) -> list[Any]:
    from rich.text import Text

    from astrarium.gate.board_settings import settings_table, write_setting

    rows = [
        (name, write_setting(name, view.settings[name]), setting.about)
        for name, setting in settings_table().items()
    ]
    title = Text(f"{view.policy}: {KERNEL_POLICIES.get(view.policy, '')}", style="bold")
    return [title, Text(f"board {view.path}\n"), table("setting", "value", "meaning", rows=rows)]
