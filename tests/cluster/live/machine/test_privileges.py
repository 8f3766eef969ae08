"""Who becomes another user is nothing else, and cannot go back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astrarium.cluster.live.machine.keeping.privileges import become
from astrarium.cluster.live.machine.owners import NO_GROUP
from tests.support.cluster.users import MALLORY, VICTIM, needs_root


def in_child(do: Callable[[], Any]) -> Any:
    """Return what a function returns in a process of its own, or the name of its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # seconds, far more than it takes
        try:
            answer = do()
        except BaseException as error:
            answer = type(error).__name__
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        answer = json.loads(file.read())
    os.waitpid(child, 0)
    return answer


def refused(deed: Callable[..., Any], *words: Any) -> bool:
    try:
        deed(*words)
    except PermissionError:
        return True
    return False


@needs_root
def test_who_has_become_another_user_is_nothing_else_and_cannot_go_back(tmp_path: Path) -> None:
    (tmp_path / "closed").touch(mode=0o600)

    def rights() -> list[Any]:
        become({"user": MALLORY, "group": NO_GROUP, "extra_groups": [VICTIM]})
        ids = [list(os.getresuid()), list(os.getresgid()), os.getgroups()]
        status = Path("/proc/self/status").read_text().splitlines()
        powers = [line.split()[1] for line in status if line.startswith(("CapPrm", "CapEff"))]
        back = [refused(os.setuid, 0), refused(os.seteuid, 0), refused(os.setresuid, 0, 0, 0),
                refused(os.setgid, 0), refused(os.setresgid, 0, 0, 0), refused(os.setgroups, [0]),
                refused(os.setuid, VICTIM), refused(os.kill, os.getppid(), 0),
                refused((tmp_path / "closed").read_bytes)]  # fmt: skip
        return [ids, {int(mask, 16) for mask in powers} == {0}, all(back)]

    assert in_child(rights) == [[[MALLORY] * 3, [NO_GROUP] * 3, [VICTIM]], True, True]


@needs_root
@pytest.mark.parametrize(
    ("account", "error"),
    [
        ({"user": 0, "group": 0, "extra_groups": []}, "PermissionError"),
        ({"user": "0", "group": NO_GROUP, "extra_groups": []}, "PermissionError"),
        ({"user": -1, "group": NO_GROUP, "extra_groups": []}, "PermissionError"),
        ({"user": MALLORY, "group": -1, "extra_groups": []}, "PermissionError"),
        ({"user": MALLORY, "group": NO_GROUP}, "KeyError"),
        ({"user": MALLORY}, "KeyError"),
        ({"user": 1 << 40, "group": NO_GROUP, "extra_groups": []}, "OverflowError"),
    ],
)
def test_half_of_an_account_is_nobodys(account: dict[str, Any], error: str) -> None:
    assert in_child(lambda: become(account)) == error


def test_an_empty_account_is_our_own() -> None:
    before = os.getresuid(), os.getresgid(), os.getgroups()
    become({})
    assert (os.getresuid(), os.getresgid(), os.getgroups()) == before
