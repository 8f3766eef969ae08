"""The file of a checkpoint as a session writes and reads it: all of it, or the one before it."""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from astrarium.run.unpickling import UntrustedFile, load_file


def write_checkpoint(content: Any, path: Path) -> None:
    """Write a checkpoint so that the one before it stands until all of this one is on the disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(draft, flags, 0o600), "wb") as file:  # what nobody else can write is trusted later
            _dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


class _CheckedFile:
    """A file that remembers why it could not be written: PyTorch does not tell."""

    def __init__(self, file: Any) -> None:
        self._file: Any = file
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        try:
            written: int = self._file.write(content)
        except OSError as error:
            self.error = error
            raise
        return written

    def flush(self) -> None:
        self._file.flush()


def _dump(content: Any, file: Any) -> None:
    torch = sys.modules.get("torch")
    checked = _CheckedFile(file)
    try:
        (pickle.dump if torch is None else torch.save)(content, checked)
    except Exception:
        if checked.error is not None:
            raise checked.error from None
        raise


def read_checkpoint(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = load_file(file)
        return {"done": content["done"], "state": content["state"]}
    except UntrustedFile:
        raise
    except Exception as error:
        problem = f"the checkpoint {path} cannot be read: remove it, and the job begins anew"
        raise RuntimeError(f"{problem} ({type(error).__name__}: {error})") from error
