"""Pack LitServe and Triton into a file, for a machine that has torch and on which nothing can be installed.

    python benchmarks/serving/peers/packed.py 3.12 build/peers.tar.xz --also msgspec prometheus-client

There: `python -m tarfile -e build/peers.tar.xz build/peers`, and build/peers in PYTHONPATH. Of PyTriton's
wheel only its server is kept, with what a model in that version of Python needs. Needs strip.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from environments import PACKAGES

PLATFORMS = ("manylinux_2_35_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", help="its version there, such as 3.12")
    parser.add_argument("file", type=Path)
    parser.add_argument("--also", nargs="+", default=[], metavar="PACKAGE", help="such as what we need")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder, options.python, "--no-deps", *PACKAGES["triton"][:1])
        trim(folder, options.python)
        install(folder, options.python, *PACKAGES["litserve"], *options.also)
        strip(folder)
        with tarfile.open(options.file, "w:xz") as packed:
            packed.add(folder, ".", filter=without_caches)
    print(f"{options.file}: {options.file.stat().st_size / 2**20:.1f} MiB")


def install(folder: Path, python: str, *what: str) -> None:
    """Install wheels for another Python."""
    platforms = [f"--platform={platform}" for platform in PLATFORMS]
    where = [f"--target={folder}", f"--python-version={python}", "--only-binary=:all:", *platforms]
    subprocess.run([sys.executable, "-m", "pip", "install", "-qq", *where, *what], check=True)


def trim(folder: Path, python: str) -> None:
    """Remove what is there for other versions of Python, and the library of one, which each machine has."""
    for stub in (folder / "pytriton" / "tritonserver" / "python_backend_stubs").iterdir():
        if stub.name != python:
            shutil.rmtree(stub)
    for library in (folder / "nvidia_pytriton.libs").glob("libpython*"):
        library.unlink()


def strip(folder: Path) -> None:
    """Remove symbols that only debuggers read: half of what the libraries weigh."""
    programs = [path for path in folder.rglob("*") if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]
    subprocess.run(["strip", "--strip-unneeded", *map(str, programs)], check=True)


def without_caches(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.endswith("__pycache__") else member


if __name__ == "__main__":
    main()
