"""What making tokens costs is counted, in whichever threads it is done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread, get_ident, get_native_id
from time import pthread_getcpuclockid

import pytest

from astrarium.server.control.texts.tokenizer_threads import LibraryThreads, cpu_clock, cpu_time
from tests.support.server.tokenizers import saved

IN_THE_LIBRARY = """
import os
import sys
from astrarium.server.control.texts.token_inputs import token_inputs
from astrarium.server.control.texts.tokenizer import Tokenizer
from astrarium.server.control.texts.tokenizer_threads import cpu_time, library_threads
from astrarium.serving.live.tensors import TensorSpec
from astrarium.serving.scenario.tokenization import Tokenization

inputs = token_inputs(Tokenization(sys.argv[1], longest=512), [TensorSpec("TOKENS", "INT64", (-1,))], "p")
tokenizer = Tokenizer(sys.argv[1], inputs, "p")
threads = lambda: set(map(int, os.listdir("/proc/self/task")))
before = threads()
for _ in range(10):
    tokenizer.encode([(b"the server takes a text " * 80,)] * 16)
print(sorted(threads() - before) == sorted(library_threads.numbers))
print(len(library_threads.numbers), min(map(cpu_time, library_threads.numbers)) > 0)
"""


def test_the_clock_of_a_thread_is_the_one_that_the_c_library_names() -> None:
    assert cpu_clock(get_native_id()) == pthread_getcpuclockid(get_ident())
    assert cpu_time(get_native_id()) > 0


def test_a_thread_that_is_not_there_has_no_time() -> None:
    assert cpu_time((1 << 22) + 1) == 0  # Linux has no such number


def test_the_librarys_threads_are_those_that_its_first_texts_leave() -> None:
    library = LibraryThreads()
    done = Event()
    threads = [Thread(target=done.wait) for _ in range(3)]

    def encode() -> str:
        for thread in threads:
            if thread.ident is None:
                thread.start()
        return "tokens"

    try:
        assert library.watched(encode) == library.watched(encode) == "tokens"
        assert library.numbers == {thread.native_id for thread in threads}
    finally:
        done.set()


def test_what_the_library_does_in_threads_of_its_own_is_counted(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    environment = {**os.environ, "RAYON_NUM_THREADS": "3", "TOKENIZERS_PARALLELISM": "true"}
    command = [sys.executable, "-c", IN_THE_LIBRARY, saved(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "3", "True"]
