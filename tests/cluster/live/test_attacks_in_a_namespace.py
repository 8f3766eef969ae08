"""Who is not root runs the attacks in a user namespace, where one is root and has users of one's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

INSIDE = ["unshare", "--user", "--map-root-user", "--map-auto"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root runs the attacks as they are")
def test_all_attacks() -> None:
    if shutil.which("unshare") is None or subprocess.run([*INSIDE, "true"], capture_output=True).returncode:
        pytest.skip("neither root nor a user namespace with several users is allowed here")
    attacks = Path(__file__).with_name("test_attacks.py")
    subprocess.run([*INSIDE, sys.executable, "-m", "pytest", "-q", str(attacks)], check=True, timeout=600)
