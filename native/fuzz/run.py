"""Fuzzes the native code that reads bytes from outside, and stresses its threads, with sanitizers on.

    make fuzz                      # 15 s for each target
    make fuzz FUZZ_SECONDS=3600    # an hour for each

A file here with LLVMFuzzerTestOneInput is a target for libFuzzer, with the address and undefined behaviour
sanitizers; it needs clang, which is installed in continuous integration alone, and is else replaced by the
file's own random changes, built with g++. The others stress threads and run under the thread sanitizer. What
was found interesting is kept in build/fuzz and is where the next run begins; so is an input that breaks
something.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
GATE = HERE.parent / "gate"
BUILD = HERE.parents[1] / "build" / "fuzz"
INCLUDES = [f"-I{HERE.parent}", f"-I{GATE}"]
COMMON = ["-std=c++20", "-g", "-O1", "-fno-omit-frame-pointer", *INCLUDES, "-pthread"]
CLANG = ["clang", "libclang-rt-14-dev"]  # packages of Debian
BUILTINS = ["-rtlib=compiler-rt", "-unwindlib=libgcc"]  # GCC's have no checked product of 128 bits on ARM
# Targets whose code is C: these files are compiled with them.
GATE_SOURCES = [
    source for folder in ("policy", "board", "sharing") for source in sorted((GATE / folder).glob("*.c"))
]
C_SOURCES = {"gate_board": GATE_SOURCES}
ALONE = 20_000  # inputs, where there is no libFuzzer
LONGEST = 4096  # bytes of an input


class Target(NamedTuple):
    name: str
    is_fuzzer: bool
    command: list[str]


class Ended(NamedTuple):
    target: Target
    code: int
    output: str

    @property
    def told(self) -> str:
        """Return what libFuzzer counted, or the last line."""
        counted = re.findall(r"stat::number_of_executed_units:\s*(\d+)", self.output)
        covered = re.findall(r"cov: (\d+)", self.output)
        if counted and covered:
            return f"{int(counted[-1]):,} inputs, {covered[-1]} places reached"
        return (self.output.strip().splitlines() or [""])[-1]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--seconds", type=int, default=15, help="for each target, 15 unless given")
    options.add_argument("targets", nargs="*", help="names of files, all unless given")
    given = options.parse_args()
    clang = found_clang()
    sources = [
        source for source in sorted(HERE.glob("*.cpp")) if source.stem in (given.targets or source.stem)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        targets = list(pool.map(lambda source: built(source, clang, given.seconds), sources))
        ended = list(pool.map(run, targets))
    for one in ended:
        print(f"{'ok    ' if not one.code else 'BROKEN'} {one.target.name}: {one.told}")
    broken = [one for one in ended if one.code]
    for one in broken:
        print(f"\n{one.target.name}: {' '.join(one.target.command)}\n{one.output[-6000:]}")
    sys.exit(bool(broken))


def found_clang() -> str | None:
    """Return clang. Only a machine of continuous integration, which says CI, has it installed by us."""
    may_install = os.environ.get("CI") and shutil.which("apt-get") and os.geteuid() == 0
    if shutil.which("clang++") is None and may_install:
        subprocess.run(["apt-get", "install", "-y", "-q", *CLANG], stdout=subprocess.DEVNULL)
    found = shutil.which("clang++")
    if found is None:
        print(f"no clang ({' '.join(CLANG)}): inputs change at random, not led by what they reach")
    return found


def built(source: Path, clang: str | None, seconds: int) -> Target:
    is_fuzzer = "LLVMFuzzerTestOneInput" in source.read_text(encoding="utf-8")
    program, corpus = BUILD / source.stem, BUILD / f"{source.stem}-corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    if is_fuzzer and clang:
        compiler = [clang, "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all", *BUILTINS]
        limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", "-timeout=10", "-print_final_stats=1"]
        command = [str(program), *limits, f"-artifact_prefix={BUILD}/{source.stem}-", str(corpus)]
    elif is_fuzzer:
        compiler = ["g++", "-DALONE", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        command = [str(program), str(ALONE)]
    else:
        compiler, command = ["g++", "-fsanitize=thread", "-Wno-tsan"], [str(program)]
    objects = [compiled(each, compiler, program) for each in C_SOURCES.get(source.stem, [])]
    subprocess.run([*compiler, *COMMON, str(source), *objects, "-o", str(program), "-ldl"], check=True)
    return Target(source.stem, is_fuzzer, command)


def compiled(source: Path, compiler: list[str], program: Path) -> str:
    """Return an object of a file of C, with the same sanitizers as its target."""
    into = f"{program}-{source.stem}.o"
    sanitized = [word for word in compiler[1:] if word not in BUILTINS]
    flags = ["-x", "c", "-std=gnu11", "-g", "-O1", "-fno-omit-frame-pointer", *INCLUDES, "-c"]
    subprocess.run([compiler[0], *sanitized, *flags, str(source), "-o", into], check=True)
    return into


def run(target: Target) -> Ended:
    done = subprocess.run(target.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return Ended(target, done.returncode, done.stdout.decode(errors="replace"))


if __name__ == "__main__":
    main()
