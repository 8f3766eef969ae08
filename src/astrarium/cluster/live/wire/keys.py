"""Keys lie in files that their owner alone can read."""

from __future__ import annotations

import os
from pathlib import Path

from astrarium.core.errors import InputError

SHORTEST_KEY = 32  # characters


def private_text(field: str, path: str | Path) -> str:
    """Return what a file of keys says. It must be for its owner alone."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise InputError(field, str(path), f"a file for its owner alone: chmod 600 {path}")
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(field, str(path), f"a file that can be read ({error})") from None


def checked_key(field: str, path: str | Path, text: str) -> bytes:
    if len(text) < SHORTEST_KEY:
        expected = f"a key of at least {SHORTEST_KEY} characters, such as `openssl rand -hex 32` makes"
        raise InputError(field, str(path), expected)
    return text.encode()


def read_key(field: str, path: str | Path) -> bytes:
    return checked_key(field, path, private_text(field, path).strip())
