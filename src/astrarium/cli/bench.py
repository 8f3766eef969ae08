"""astrarium bench"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import typer

from astrarium.cli import output
from astrarium.cli.options import Json, NoFolder, Out, Overwrite
from astrarium.core.errors import AstrariumError, InputError


def bench(
    context: typer.Context,
    json: Json = False,
    out: Out = None,
    overwrite: Overwrite = False,
    no_folder: NoFolder = False,
) -> None:
    """Run the benchmarks of a checkout.

    Options that are not listed here go to benchmarks/run.py.
    """
    script = find_script([Path(__file__).resolve().parents[3], Path.cwd()])
    at = output.target("bench", "all", out, overwrite, no_folder)
    text = _run(script, [*context.args, *(["--json"] if json else [])], echo=not json)
    result = _decoded(text) if json else {"output": text}
    if at.path is not None:
        _write(at, text, result, output.command_line(context))
    output.emit(json, result, [], at.path)


def find_script(roots: list[Path]) -> Path:
    """Benchmarks are not installed: they compare one checkout with its peers."""
    for root in roots:
        script = root / "benchmarks" / "run.py"
        if script.is_file() and (root / "src" / "astrarium").is_dir():
            return script
    raise InputError("bench", None, "a checkout of astrarium with benchmarks/run.py; run it from there")


def _run(script: Path, arguments: list[str], echo: bool) -> str:
    """What the script printed; its progress goes straight to our stderr."""
    lines = []
    with subprocess.Popen(
        [sys.executable, str(script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interrupt at the keyboard is for us
    ) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                lines.append(line)
                if echo:
                    sys.stdout.write(line)
                    sys.stdout.flush()
        except BaseException:
            os.killpg(child.pid, signal.SIGTERM)  # with the servers and clients that it has started
            raise
    if child.returncode:
        raise AstrariumError(f"{script.name} ended with exit code {child.returncode}")
    return "".join(lines)


def _decoded(text: str) -> dict[str, Any]:
    import msgspec

    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise AstrariumError(f"benchmarks/run.py --json printed no JSON object: {error}") from error


def _write(at: Any, text: str, result: dict[str, Any], command: str) -> None:
    from astrarium.run import folder

    with at.draft() as draft:
        (draft / "output.txt").write_text(text, encoding="utf-8")
        folder.write_summary(draft, result)
        folder.write_readme(draft, command, {"output.txt": "what the benchmarks printed"})
