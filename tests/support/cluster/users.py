"""Users as whom tests of a shared cluster act: numbers of which no machine has an account, and nobody."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable
from typing import Any

import pytest

MALLORY = 61001
VICTIM = 61002
NO_GROUP = 65534
NOBODY = "nobody"  # who has an account wherever tests run
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
            answer = do()
        except Exception as error:
            answer = str(error)
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        answer = json.loads(file.read())
    os.waitpid(child, 0)
    return answer


def as_nobody(do: Callable[[], Any]) -> Any:
    account = pwd.getpwnam(NOBODY)
    return as_user(account.pw_uid, do, account.pw_gid)
