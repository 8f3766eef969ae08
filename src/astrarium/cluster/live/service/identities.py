"""Who somebody is: a user of the arbiter's machine, as the kernel says, or whoever has shown a key."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping

from astrarium.cluster.live.access import Identity
from astrarium.cluster.live.backends.hosts.messages import AGENT
from astrarium.cluster.live.wire.keys import checked_key, private_text
from astrarium.core.errors import InputError


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def identity(user: str) -> Identity:
    try:
        groups = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except KeyError:  # somebody who is no user of this machine
        return Identity(user)
    return Identity(user, frozenset(_group_name(group) for group in groups))


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def read_keys(field: str, path: str) -> Mapping[str, bytes]:
    """Return the keys of users, from a file with a line `name: key` for each."""
    lines = [line.partition(":") for line in private_text(field, path).splitlines() if line.strip()]
    for name, colon, _ in lines:
        if not colon or not name.strip() or name.strip() == AGENT or set(name) & set("\"'"):
            expected = f"a line `name: key` for each user, without quotes, none of them {AGENT}"
            raise InputError(field, path, expected)
    return {name.strip(): checked_key(field, path, key.strip()) for name, _, key in lines}
