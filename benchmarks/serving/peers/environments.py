"""A virtual environment for each peer, made on first use: they disagree about what they need."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import venv
from importlib.metadata import distributions
from pathlib import Path

HOME = Path(__file__).resolve().parents[3] / "build" / "peers"
COMPLETE = "complete"  # an empty file in an environment that was installed to its end

# What is installed where. The first package is the peer itself.
PACKAGES: dict[str, tuple[str, ...]] = {
    "triton": ("nvidia-pytriton>=0.7,<0.8", "numpy>=1.26,<2.3"),
    "litserve": ("litserve>=0.2.19,<0.3", "uvloop>=0.20,<1"),
    "ray": ("ray[serve]>=2.60,<2.61", "uvloop>=0.20,<1"),
    "bentoml": ("bentoml>=1.4.30,<1.5", "numpy>=1.26,<3"),
    "mlserver": ("mlserver>=1.7.1,<1.8", "numpy>=1.26,<3", "uvloop>=0.20,<0.22"),
}


def python(name: str) -> Path:
    """Return the interpreter of a peer's environment, which is made if it is not there."""
    folder = HOME / name
    if not (folder / COMPLETE).exists():
        make(name)
    return folder / "bin" / "python"


def make(name: str) -> None:
    folder = HOME / name
    print(f"{name}: installing {', '.join(PACKAGES[name])}", file=sys.stderr, flush=True)
    venv.create(folder, with_pip=True, clear=True)
    pip = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "-qq",
        "--no-cache-dir",
    ]  # wheels are large
    subprocess.run([*pip, "--disable-pip-version-check", *PACKAGES[name]], check=True)
    (folder / COMPLETE).touch()


def packages(name: str) -> Path:
    """Return the folder of a peer's packages in its environment."""
    return next((HOME / name / "lib").glob("python*/site-packages"))


def versions(name: str, folder: Path | None = None) -> dict[str, str]:
    """Return the versions of the packages that the table names, for the results."""
    installed = {d.name: d.version for d in distributions(path=[str(folder or packages(name))])}
    wanted = [re.split(r"[\[<>=]", package)[0] for package in PACKAGES[name]]
    return {package: installed[package] for package in wanted if package in installed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(PACKAGES)}; all unless given"
    )
    for name in parser.parse_args().names or PACKAGES:
        if name not in PACKAGES:
            parser.error(f"there is no peer {name!r}; there are {', '.join(PACKAGES)}")
        python(name)
        print(name, versions(name))


if __name__ == "__main__":
    main()
