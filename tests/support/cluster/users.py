"""Users by number alone, of whom no machine has an account: what tests of a shared cluster act as."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

MALLORY = 61001
VICTIM = 61002
NO_GROUP = 65534
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can run something as another user: run these tests as root"
)


def as_user(user: int, do: Callable[[], Any], group: int = NO_GROUP) -> Any:
    """Return what a function returns, or the words of its error, in a process that is somebody else's."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
        try:
            told = do()
        except Exception as error:
            told = str(error)
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        told = json.loads(file.read())
    os.waitpid(child, 0)
    return told
