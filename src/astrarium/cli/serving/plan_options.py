"""The options of `astrarium plan` as text are read here into what planning takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from astrarium.core.errors import InputError
from astrarium.core.quantities import duration_in

if TYPE_CHECKING:
    from astrarium.core.choice import Choice

_PICTURES = (".png",)


def router_wait(text: str | None, planned: bool) -> int | None:
    if text is None:
        return None
    if not planned:
        raise InputError("--router-wait", text, "a --plan beside it, whose replicas have queues")
    return duration_in("--router-wait", text)


def share(text: str) -> float:
    """Read a share, written '99%' or '0.99'."""
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = 0.0
    if rest.strip() or not 0 < value <= 1:
        raise InputError("--target", text, "a share above 0 and up to 100%, such as 99% or 0.99")
    return value


def chosen(name: str, parameters: list[str], option: str = "-p") -> Choice:
    from astrarium.core.choice import Choice
    from astrarium.core.overrides import pairs

    expected = f"KEY=VALUE, a parameter of {name}: see `astrarium policies {name}`"
    return Choice(name, pairs(parameters, option, expected))


def rivals(texts: list[str]) -> tuple[Choice, ...]:
    """'alpaserve,usher:cluster=open,group=2' are two, the second with parameters."""
    named: list[tuple[str, list[str]]] = []
    for text in texts:
        for piece in _pieces(text):
            name, colon, first = piece.partition(":")
            if "=" in name and named:
                named[-1][1].append(piece)
            elif name.strip():
                named.append((name.strip(), [first] if colon else []))
            else:
                raise InputError("--against", text, "names of placement policies, such as alpaserve,usher")
    return tuple(chosen(name, parameters, "--against") for name, parameters in named)


def _pieces(text: str) -> list[str]:
    """Cut a text at its commas, but for those inside brackets."""
    pieces = [""]
    depth = 0
    for sign in text:
        depth += (sign in "{[") - (sign in "}]")
        if sign == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += sign
    return [piece.strip() for piece in pieces]


def check_files(scenario: Path, out: Path | None, plot: Path | None, overwrite: bool) -> None:
    """Refuse files that could not be written, before the work begins."""
    from astrarium.serving.planning.plans import ENDINGS

    if out is not None and out.resolve() == scenario.resolve():
        raise InputError("--out", str(out), "another file: this is the scenario")
    _check_file("--out", out, ENDINGS, overwrite)
    _check_file("--plot", plot, _PICTURES, overwrite)


def _check_file(option: str, path: Path | None, endings: tuple[str, ...], overwrite: bool) -> None:
    if path is None:
        return
    if path.suffix not in endings:
        raise InputError(option, str(path), f"a name that ends in {', '.join(endings)}")
    if not path.resolve().parent.is_dir():
        raise InputError(option, str(path), "a file in a folder that is there")
    if path.is_dir() or (path.exists() and not overwrite):
        raise InputError(option, str(path), "a file that is not there yet, or --overwrite")
