"""Scripts of players that run in a separate single-threaded process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def run_player(script: Path, name: str, seed: int, size: int) -> dict[str, Any]:
    """Train one library with one seed; return the last line that the script prints."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(script.parents[1]),
        "PYTHONWARNINGS": "ignore",
    }
    finished = subprocess.run(
        [sys.executable, str(script), name, str(seed), str(size)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise SystemExit(f"{name}, seed {seed}:\n{finished.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return figures
