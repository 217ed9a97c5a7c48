"""Reward for correct letters that logs the calling process, and is slow or fails on request."""

from __future__ import annotations

import os
import time
from pathlib import Path


def reward(task, text, messages) -> float:
    log = os.environ.get("WATCHED_LOG")
    if log:
        with Path(log).open("a") as lines:
            lines.write(f"{os.getpid()}\n")
        time.sleep(float(os.environ["WATCHED_SECONDS"]))
        failures = Path(f"{log}.failures")
        if failures.exists() and len(Path(log).read_text().splitlines()) > 20:
            left = int(failures.read_text()) - 1
            failures.write_text(str(left)) if left else failures.unlink()
            raise ConnectionError("the judge is out")
    return sum(a == b for a, b in zip(text, task.answer, strict=False)) / len(task.answer)
