"""Write the stubs of the native extensions, `src/astrarium/_….pyi`, from what was built: `make stubs`."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

from nanobind.stubgen import StubGen, load_pattern_file  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
# Each extension by the folder with its `aliases.nb`, which names types that signatures use.
EXTENSIONS = {
    "_front": "front",
    "_gate": "gate/bindings",
    "_placement": "placement",
    "_scheduler": "scheduler",
    "_simulator": "simulator",
    "_tensors": "tensors",
    "_testing": "testing",
    "_worker": "worker",
}
_WIDTH = 110


class Stub(StubGen):  # type: ignore[misc]
    """A stub generator writes docstrings as they are written in Python here."""

    def put_docstr(self, docstr: str) -> None:
        self.write(self.format_docstr(docstr, self.depth))

    def format_docstr(self, docstr: str, depth: int) -> str:
        indent = "    " * depth
        text = '"""' + " ".join(docstr.split()) + '"""'
        lines = textwrap.wrap(
            text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )
        return "\n".join(lines) + "\n"

    def get(self) -> str:
        text: str = super().get()
        if text.startswith('"""'):
            return text
        return self.format_docstr(self.module.__doc__, 0) + "\n" + text  # older generators leave it out


def path(name: str) -> Path:
    """Return where an extension's stub is."""
    return ROOT / "src" / "astrarium" / f"{name}.pyi"


def stub(name: str) -> str:
    """Return the stub of an extension that was built."""
    modules = {
        other: import_module(f"astrarium.{other}") for other in EXTENSIONS
    }  # with all types that they share
    patterns = load_pattern_file(str(ROOT / "native" / EXTENSIONS[name] / "aliases.nb"))
    generator = Stub(modules[name], patterns=patterns)
    generator.put(modules[name])
    checked = _ruff(generator.get(), name, "check", "--fix-only")
    return _ruff(checked, name, "format")


def _ruff(text: str, name: str, *command: str) -> str:
    whole = [sys.executable, "-m", "ruff", *command, "--quiet", "--stdin-filename", str(path(name)), "-"]
    return subprocess.run(whole, input=text, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def main() -> None:
    for name in EXTENSIONS:
        path(name).write_text(stub(name))


if __name__ == "__main__":
    main()
