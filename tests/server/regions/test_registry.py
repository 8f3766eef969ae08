"""Which memory of a client is opened, for whom, and what happens when its owner changes it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from tests.support.server.shared_objects import SHARED_MEMORY, SharedObject, shared_object

_front: Any = import_module("astrarium._front")
ME = os.geteuid()
SOMEBODY = ME + 1
NO_KEY = -1
NOTHING = ("", "")


@pytest.fixture
def regions() -> Any:
    regions = _front.Regions()
    regions.allow(1 << 20, True)
    return regions


@pytest.fixture
def memory() -> Iterator[SharedObject]:
    with shared_object(bytes(range(100))) as made:
        yield made


def add(regions: Any, key: str, name: str = "r", user: int = ME, offset: int = 0, size: int = 10) -> Any:
    return regions.add(user, NO_KEY, name, key, offset, size)


def test_a_region_is_a_part_of_an_object(regions: Any, memory: SharedObject) -> None:
    assert add(regions, memory.key, offset=20, size=50) == NOTHING
    region = regions.find(ME, NO_KEY, "r")
    assert (region.name, region.key, region.offset, region.size) == ("r", memory.key, 20, 50)
    assert region.read(0, 50) == bytes(range(20, 70))
    assert region.write(48, b"\xff\xfe")
    assert memory.path.read_bytes()[68:71] == b"\xff\xfe\x46"
    assert regions.totals() == (1, 50)


@pytest.mark.parametrize(
    ("at", "size"), [(0, 51), (50, 1), (51, 0), (2**63, 8), (2**64 - 1, 2), (1, 2**64 - 1)]
)
def test_nothing_beyond_a_region_is_reached(regions: Any, memory: SharedObject, at: int, size: int) -> None:
    add(regions, memory.key, offset=20, size=50)
    region = regions.find(ME, NO_KEY, "r")
    assert region.read(at, size) is None
    if size < 100:
        assert not region.write(at, bytes(size))


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, 101), (100, 1), (2**63 - 1, 1), (2**63, 1), (2**64 - 1, 2**64 - 1), (1, 2**64 - 1)],
)
def test_a_region_ends_where_its_object_does(
    regions: Any, memory: SharedObject, offset: int, size: int
) -> None:
    field, expected = add(regions, memory.key, offset=offset, size=size)
    assert field == "byte_size"
    assert "with the offset at most" in expected
    assert regions.totals() == (0, 0)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/.",
        "/..",
        "..",
        "/../etc/passwd",
        "/a/b",
        "//etc/passwd",
        "/a\0b",
        "/" + 256 * "k",
        "/astrarium-x",
    ],
)
def test_other_files_have_no_key(regions: Any, key: str) -> None:
    assert add(regions, key)[0] == "key"


def test_the_slash_may_be_left_out(regions: Any, memory: SharedObject) -> None:
    assert add(regions, memory.key[1:]) == NOTHING


def test_what_leads_elsewhere_is_not_followed(regions: Any, memory: SharedObject) -> None:
    link = SHARED_MEMORY / f"test-link-{os.getpid()}"
    link.symlink_to("/etc/passwd")
    try:
        assert add(regions, f"/{link.name}")[0] == "key"
    finally:
        link.unlink()


@pytest.mark.parametrize("kind", ["fifo", "folder", "socket"])
def test_what_is_no_memory_is_refused_and_keeps_nobody_waiting(regions: Any, kind: str) -> None:
    path = SHARED_MEMORY / f"test-{kind}-{os.getpid()}"
    listening = socket.socket(socket.AF_UNIX)
    make: dict[str, Any] = {"fifo": os.mkfifo, "folder": os.mkdir, "socket": listening.bind}
    make[kind](str(path))
    try:
        assert add(regions, f"/{path.name}")[0] == "key"
    finally:
        listening.close()
        path.rmdir() if kind == "folder" else path.unlink()


def test_memory_of_other_users_is_not_for_a_client(regions: Any, memory: SharedObject) -> None:
    field, expected = add(regions, memory.key, user=SOMEBODY)
    assert (field, "own user" in expected) == ("key", True)


@pytest.mark.parametrize(("mode", "is_writable"), [(0o644, False), (0o666, True)])
def test_memory_that_everybody_may_read_is(regions: Any, mode: int, is_writable: bool) -> None:
    with shared_object(bytes(10), mode) as memory:
        assert add(regions, memory.key, user=SOMEBODY) == NOTHING
        region = regions.find(SOMEBODY, NO_KEY, "r")
        assert region.is_writable == is_writable
        assert region.write(0, b"x") == is_writable


def test_where_users_are_not_told_apart_memory_is_the_servers_own(memory: SharedObject) -> None:
    regions = _front.Regions()
    regions.allow(1 << 20, False)
    assert regions.add(-1, NO_KEY, "r", memory.key, 0, 10) == NOTHING


def test_names_are_their_owners(regions: Any, memory: SharedObject) -> None:
    for key in (0, 1):
        assert regions.add(ME, key, "r", memory.key, key, 10) == NOTHING
    assert [regions.find(ME, key, "r").offset for key in (0, 1)] == [0, 1]
    assert regions.find(SOMEBODY, 0, "r") is None
    assert regions.remove(ME, 0, "") == 1
    assert regions.find(ME, 1, "r") is not None
    assert regions.add(ME, 1, "r", memory.key, 0, 10)[0] == "name"


def test_who_holds_a_region_has_it_although_it_was_unregistered(regions: Any, memory: SharedObject) -> None:
    add(regions, memory.key)
    region = regions.find(ME, NO_KEY, "r")
    assert regions.remove(ME, NO_KEY, "r") == 1
    assert regions.remove(ME, NO_KEY, "r") == 0
    assert region.read(0, 10) == bytes(range(10))
    assert regions.find(ME, NO_KEY, "r") is None


def test_an_object_that_becomes_shorter_harms_nobody_and_does_not_grow(
    regions: Any, memory: SharedObject
) -> None:
    add(regions, memory.key, size=100)
    region = regions.find(ME, NO_KEY, "r")
    memory.shorten(40)
    assert region.read(0, 40) == bytes(range(40))
    assert region.read(0, 41) is None
    assert not region.write(40, b"x")
    assert not region.write(39, b"xy")
    assert memory.path.stat().st_size == 40


def test_an_owner_has_so_many_regions_and_all_have_so_many_bytes(regions: Any, memory: SharedObject) -> None:
    most = 1024
    added = [add(regions, memory.key, name=str(number), size=1) for number in range(10_000)]
    assert added[:most] == most * [NOTHING]
    assert all(field == "" and "fewer regions" in expected for field, expected in added[most:])
    assert add(regions, memory.key, user=SOMEBODY)[0] == "key"  # there is place, but it is not theirs
    assert regions.remove(ME, NO_KEY, "") == most
    assert regions.totals() == (0, 0)
    with shared_object(bytes((1 << 20) + 1)) as large:
        assert add(regions, large.key, size=1 << 20) == NOTHING
        field, expected = add(regions, large.key, name="more", offset=1 << 20, size=1)
        assert (field, "server.shared_memory" in expected) == ("", True)
    assert len(os.listdir("/proc/self/fd")) < most


def test_the_kernel_knows_whose_socket_a_client_has() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        served, _ = listener.accept()
        with served:
            assert _front.user_of_peer(served.fileno()) == ME
            client.close()  # a socket without a process would be root's
            assert _front.user_of_peer(served.fileno()) == -2
    with socket.socketpair()[0] as other:
        assert _front.user_of_peer(other.fileno()) == -2
