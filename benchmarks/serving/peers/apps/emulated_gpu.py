"""The GPU that every server is given: one batch at a time, each as long as the profile says."""

from __future__ import annotations

import time

# ResNet50 (Symphony, table 2)
ALPHA_MS = 1.053
BETA_MS = 5.072


def milliseconds(batch: int) -> float:
    return ALPHA_MS * batch + BETA_MS


def run(batch: int) -> None:
    time.sleep(milliseconds(batch) / 1000)
