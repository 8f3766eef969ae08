"""What goes wrong inside a model is told with the place in the model's own code."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback

_OURS = os.path.dirname(__file__) + os.sep
_INSTALLED = ("site-packages", "dist-packages", sysconfig.get_paths()["stdlib"])

_LONGEST = 200  # characters of a library's own words


def blamed(error: BaseException) -> str:
    """Return the error's text with the file and line of the model's code that it came from.

    The innermost line outside of installed packages, which is where a person can change something. Clients
    read it too, and which folder the file is in is none of their business.
    """
    files = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    theirs = [place for place in files if not place[0].startswith((_OURS, "<"))]
    written = [place for place in theirs if not any(part in place[0] for part in _INSTALLED)]
    where = "".join(f"{os.path.basename(file)}:{line}: " for file, line in (written or theirs)[-1:])
    return f"{where}{type(error).__name__}: {error}"


def first_sentence(error: BaseException) -> str:
    """Return what went wrong, without the advice and the traces that libraries add to it."""
    text = " ".join(str(error).split())
    return re.split(r"(?<=\w)\. ", text)[0].removesuffix(".")[:_LONGEST]
