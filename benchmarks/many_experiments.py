"""Cost per member of a large sweep of small experiments, for each runner.

Run it with ``python benchmarks/many_experiments.py [--members 100] [--parallel 2]
[--runners inline,processes,dask] [--tracking]``. Each runner has a separate process, folder and
Prefect server, and runs one sweep whose members train almost nothing. The time per member is
reported for each tenth of the sweep: growth indicates a scaling limit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings

SMALL = {
    "scenario": "binary_erasure_channel",
    "trainer": "solo_agent",
    "dataset": "generated",
    "interaction_protocol": "adp",
    "solo_agent": {"num_epochs": 1},
    "binary_erasure_channel": {"num_datapoints": 20},
}
PARTS = 10
"""Number of equal parts of the sweep."""


@dataclass(frozen=True)
class Growth:
    """Number and total size of files in a folder."""

    files: int
    mib: float

    @classmethod
    def of(cls, folder: Path, pattern: str) -> Growth:
        """Count matching files in a folder and add their sizes."""
        sizes = [path.stat().st_size for path in folder.glob(pattern) if path.is_file()]
        return cls(len(sizes), sum(sizes) / 2**20)

    def since(self, before: Growth) -> Growth:
        """Return the difference to an earlier count."""
        return Growth(self.files - before.files, self.mib - before.mib)


@dataclass(frozen=True)
class Result:
    """Measurements of one runner, in seconds and MiB."""

    runner: str
    members: int
    wall: float
    work: float
    cpu: float
    """CPU time of this process and its workers, without Prefect's server."""
    server_cpu: float
    per_part: list[float]
    """Seconds per member in each part of the sweep."""
    memory: float
    worker_memory: float
    server_memory: float
    grown: dict[str, Growth]


def small_settings(
    home: Path, folder: Path, runner: str, parallel: int, *, tracking: bool = False
) -> ExperimentSettings:
    """Return the settings of a small sweep with runs and stages in ``folder``."""
    from ratchet.parameters.settings import ExperimentSettings

    return ExperimentSettings.from_dict(
        {
            "home": str(home),
            "runs": str(folder / "runs"),
            "store": str(folder / "store"),
            "tracking": tracking,
            "progress": "none",
            "runner": runner,
            "max_parallel": parallel,
        }
    )


def measure(runner: str, members: int, parallel: int, *, tracking: bool) -> Result:
    """Run the sweep in this process and measure time, memory and files."""
    from flows import run_sweep
    from ratchet.tracking.run_folder import list_runs

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = small_settings(folder / "home", folder, runner, parallel, tracking=tracking)
        run_sweep(SMALL, {"seed": [members]}, settings, name="warm")  # starts the server
        paths = {
            "store": folder / "store",
            "runs": folder / "runs",
            "reports": folder / "runs",
            "Prefect's database": folder / "home" / "prefect",
            "MLflow": folder / "home",
        }
        held = {name: _held(name, path) for name, path in paths.items()}
        server = psutil.Process().children()[0]  # the temporary server started above
        before, cpu, server_cpu = time.time(), _cpu_seconds(), sum(server.cpu_times()[:2])
        run_sweep(SMALL, {"seed": list(range(members))}, settings, name="small")
        wall = time.time() - before
        server_cpu = sum(server.cpu_times()[:2]) - server_cpu
        runs = [run for run in list_runs(folder / "runs") if run.run_id.startswith("small")]
        manifests = [run.manifest for run in runs]
        ends = sorted(manifest.finished or 0.0 for manifest in manifests)
        return Result(
            runner=runner,
            members=members,
            wall=wall,
            work=sum(stage.seconds for manifest in manifests for stage in manifest.stages),
            cpu=_cpu_seconds() - cpu,
            server_cpu=server_cpu,
            per_part=_per_part(before, ends),
            memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            worker_memory=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
            server_memory=server.memory_info().rss / 2**20,
            grown={name: _held(name, path).since(held[name]) for name, path in paths.items()},
        )


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its finished subprocesses."""
    return sum(os.times()[:4])


def _per_part(begin: float, ends: Sequence[float]) -> list[float]:
    size = max(len(ends) // PARTS, 1)
    marks = [begin, *ends[size - 1 :: size]]
    return [(after - before) / size for before, after in pairwise(marks)]


_PATTERNS = {"reports": "*/report.html", "Prefect's database": "prefect.db*", "MLflow": "ml*/**/*"}


def _held(name: str, path: Path) -> Growth:
    """Return the current size of one location."""
    growth = Growth.of(path, _PATTERNS.get(name, "**/*"))
    if name != "MLflow":
        return growth
    database = Growth.of(path, "mlflow.db*")
    return Growth(growth.files + database.files, growth.mib + database.mib)


def main() -> None:
    """Print a table or, for one runner, its measurements as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=100)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--runners", default="inline,processes,dask")
    parser.add_argument("--tracking", action="store_true", help="with a local MLflow")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        result = measure(options.one, options.members, options.parallel, tracking=options.tracking)
        sys.stdout.write(json.dumps(asdict(result)) + "\n")
        return
    table = Table("figure", title=f"{options.members} members, {options.parallel} at a time")
    columns: list[list[str]] = []
    for runner in options.runners.split(","):
        command = [sys.executable, __file__, *sys.argv[1:], "--one", runner]
        free = {name: value for name, value in os.environ.items() if "PREFECT" not in name}
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=free)
        result = json.loads(done.stdout.splitlines()[-1])
        sys.stderr.write(f"{json.dumps(result)}\n")
        table.add_column(runner)
        columns.append(list(_figures(result).values()))
        names = list(_figures(result))
    for name, *values in zip(names, *columns, strict=True):
        table.add_row(name, *values)
    Console().print(table)


def _figures(result: dict[str, object]) -> dict[str, str]:
    members = int(str(result["members"]))
    wall, work = float(str(result["wall"])), float(str(result["work"]))
    parts = result["per_part"]
    figures = {
        "wall": f"{wall:.0f} s",
        "per member": f"{1000 * wall / members:.0f} ms",
        "stages, per member": f"{1000 * work / members:.0f} ms",
        "per member, by tenth of the sweep": " ".join(f"{1000 * part:.0f}" for part in parts),
        "CPU time per member": f"{1000 * result['cpu'] / members:.0f} ms",
        "server's CPU time per member": f"{1000 * result['server_cpu'] / members:.0f} ms",
        "memory of the sweep process": f"{result['memory']:.0f} MiB",
        "memory of the largest worker": f"{result['worker_memory']:.0f} MiB",
        "server's memory at the end": f"{result['server_memory']:.0f} MiB",
    }
    for name, growth in result["grown"].items():
        per = 1024 * growth["mib"] / members
        figures[f"{name}, per member"] = f"{growth['files'] / members:.1f} files, {per:.0f} KiB"
    return figures


if __name__ == "__main__":
    main()
