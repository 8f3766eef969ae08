"""What goes wrong inside a model, and whose fault it is."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from importlib import import_module
from typing import Any

from astrarium.core.errors import AstrariumError, InputError

_OURS = os.path.dirname(__file__) + os.sep
_INSTALLED = ("site-packages", "dist-packages", sysconfig.get_paths()["stdlib"])

_LONGEST = 200  # characters of a library's own words


class ModelFailed(AstrariumError):
    """The model broke on a batch, or answered with something that its outputs do not allow."""


class Interrupted(AstrariumError):
    """The batch was stopped before its end, because the worker asked for it."""


def blamed(error: BaseException) -> str:
    """The error's text with the file and line of the model's code that it came from.

    The innermost line outside of installed packages, which is where a person can change something. Clients
    read it too, and which folder the file is in is none of their business.
    """
    files = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    theirs = [place for place in files if not place[0].startswith((_OURS, "<"))]
    written = [place for place in theirs if not any(part in place[0] for part in _INSTALLED)]
    where = "".join(f"{os.path.basename(file)}:{line}: " for file, line in (written or theirs)[-1:])
    return f"{where}{type(error).__name__}: {error}"


def first_sentence(error: BaseException) -> str:
    """What went wrong, without the advice and the traces that libraries add to it."""
    text = " ".join(str(error).split())
    return re.split(r"(?<=\w)\. ", text)[0].removesuffix(".")[:_LONGEST]


def package(name: str, extra: str) -> Any:
    """A package that only this backend needs, imported now."""
    try:
        return import_module(name)
    except ImportError as error:
        expected = f"the package {name}: pip install 'astrarium[{extra}]' ({error})"
        raise InputError("backend", extra, expected) from error
