"""Bits of the same run, repeated, and killed after its first training stage and continued.

Each run is ``bits.py run HOME`` in a separate process.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from workbench import Bench, bench, show

from flows import run_without_prefect

ITERATIONS = 3


def run(sizes: Bench, home: Path) -> None:
    """Train with a store in a separate home."""
    settings = sizes.settings(
        home=str(home), runs=str(home / "runs"), iterations_per_task=1, tracking=False
    )
    run_without_prefect(sizes.hyper_params("0.2b", ITERATIONS), settings)


def main(sizes: Bench, flags: list[str]) -> None:
    """Print the hashes of all stages of three runs."""
    sizes.hyper_params("0.2b", ITERATIONS)  # writes the files that the runs share

    def start(name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, __file__, "run", str(sizes.folder / name), *flags]
        return subprocess.Popen(command, env={**os.environ, "BENCH_FOLDER": str(sizes.folder)})

    processes = {name: start(name) for name in ("once", "again", "killed")}
    killed = processes["killed"]
    while killed.poll() is None and "train 1" not in stages(sizes.folder / "killed"):
        time.sleep(0.05)  # the process sends no events
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    processes["killed"] = start("killed")
    codes = {name: process.wait() for name, process in processes.items()}
    hashes = {name: stages(sizes.folder / name) for name in codes}
    rows = [
        {"stage": stage, "equal": len({hashes[name].get(stage) for name in codes}) == 1}
        for stage in hashes["once"]
    ]
    show(f"Bits of three runs, one killed; exit codes {list(codes.values())}", rows)


def stages(home: Path) -> dict[str, str]:
    """Return the hashes of the files of each stored stage."""
    manifests = list[dict[str, Any]]()
    for file in (home / "store" / "stages").glob("*/manifest.json"):
        manifests.append(json.loads(file.read_text()))
    manifests.sort(key=lambda manifest: str(manifest["created"]))
    return {
        f"{manifest['stage']} {manifest['iteration']}": json.dumps(
            {name: file["sha256"] for name, file in sorted(manifest["files"].items())}
        )
        for manifest in manifests
    }


if __name__ == "__main__":
    arguments = [part for part in sys.argv[1:] if not part.startswith("--")]
    options = [part for part in sys.argv[1:] if part.startswith("--")]
    with bench(options) as sizes_of_all:
        if arguments[:1] == ["run"]:
            run(sizes_of_all, Path(arguments[1]))
        else:
            main(sizes_of_all, options)
