"""``ratchet doctor``: say whether all is there that runs need.

Checks versions, storage, locks, servers, threads, the sandbox and ports; changes nothing.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from flows.cli.completion import experiment_files
from flows.cli.runs import DEFAULT_RUNS, RunsFolder
from flows.process.environment import prepare_environment
from flows.process.messages import print_table
from flows.process.stack_file import running_stack
from ratchet.lazy import EXTRAS, is_installed

_DISTRIBUTION = "ratchet-experiments"
_LITTLE_SPACE = 2 * 2**30


class CheckResult(StrEnum):
    """How a check came out."""

    GOOD = "ok"
    WARNING = "warning"
    BAD = "wrong"


class Check(NamedTuple):
    """One check: what was looked at, how it is, and what to do."""

    subject: str
    verdict: CheckResult
    details: str


def doctor(
    file: Annotated[
        str | None,
        typer.Argument(
            help="An experiment file: whether it could run here too.",
            autocompletion=experiment_files,
        ),
    ] = None,
    home: Annotated[str, typer.Option(help="Ratchet's own folder.")] = ".ratchet",
    runs: RunsFolder = DEFAULT_RUNS,
) -> None:
    """Check versions, storage, servers, threads and ports. Exit code 1 if anything is wrong."""
    prepare_environment(home, make_folders=False)
    checks = [*all_checks(Path(home), Path(runs)), *(experiment(file) if file else ())]
    print_table("", ("checked", "result", "details"), checks)
    if any(check.verdict is CheckResult.BAD for check in checks):
        raise typer.Exit(1)


def all_checks(home: Path, runs: Path) -> Iterator[Check]:
    """Make all checks, one after the other."""
    yield _python()
    yield from versions()
    yield from extras()
    yield storage("home", home)
    yield storage("runs", runs)
    prefect = _prefect(home)
    yield prefect
    yield _mlflow(home)
    yield from interrupted_runs(runs)
    if prefect.verdict is CheckResult.GOOD:
        yield from lost_flow_run_checks(home)
    yield _threads()
    yield sandbox()
    yield from _ports(home)


def versions() -> Iterator[Check]:
    """Compare what is installed with the ranges that are known to work together."""
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    try:
        lines = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:
        yield Check(
            "versions", CheckResult.WARNING, "not installed: `make setup`, or `pip install -e .`"
        )
        return
    for requirement in map(Requirement, lines):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            yield Check(requirement.name, CheckResult.BAD, f"missing: pip install '{requirement}'")
            continue
        fits = requirement.specifier.contains(found, prereleases=True)
        wanted = f"{found}, wanted {requirement.specifier}"
        advice = "" if fits else f": pip install '{requirement}'"
        verdict = CheckResult.GOOD if fits else CheckResult.BAD
        yield Check(requirement.name, verdict, wanted + advice)


def extras() -> Iterator[Check]:
    """Say which optional packages are there, and how to install the others."""
    for extra in dict.fromkeys(EXTRAS.values()):
        packages = [package for package, its in EXTRAS.items() if its == extra]
        missing = [package for package in packages if not is_installed(package)]
        if missing:
            advice = f"without {', '.join(missing)}: pip install '{_DISTRIBUTION}[{extra}]'"
            yield Check(f"[{extra}]", CheckResult.WARNING, advice)
        else:
            yield Check(f"[{extra}]", CheckResult.GOOD, ", ".join(packages))


def sandbox() -> Check:
    """Say what keeps tested programs, which nobody has read, from this machine."""
    from ratchet.errors import SandboxError
    from ratchet.scenarios.sandbox.programs import sandbox_isolation

    try:
        isolation = sandbox_isolation()
    except SandboxError as error:
        return Check("sandbox", CheckResult.BAD, str(error))
    if isolation.left_open:
        details = f"nothing keeps tested programs from {' or '.join(isolation.left_open)}"
        return Check("sandbox", CheckResult.WARNING, details)
    landlock = f"Landlock {isolation.landlock}" if isolation.landlock else "no Landlock"
    spaces = ", ".join(isolation.namespaces) or "none allowed"
    return Check("sandbox", CheckResult.GOOD, f"seccomp, {landlock}, namespaces: {spaces}")


def experiment(file: str) -> Iterator[Check]:
    """Check what would keep an experiment from running here."""
    from flows.runs.preflight import find_problems
    from flows.runs.resolving import resolve_file

    problems = list(find_problems(resolve_file(file)))
    for problem in problems:
        yield Check(file, CheckResult.BAD, str(problem))
    if not problems:
        yield Check(file, CheckResult.GOOD, "could run here")


def storage(name: str, folder: Path) -> Check:
    """Check that a folder (or where it would be made) can be written and locked, and has room."""
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".ratchet-doctor-") as probe:
            _lock(probe.fileno())
    except OSError as error:
        return Check(name, CheckResult.BAD, f"{place} cannot be written or locked: {error}")
    free = shutil.disk_usage(place).free
    verdict = CheckResult.WARNING if free < _LITTLE_SPACE else CheckResult.GOOD
    return Check(name, verdict, f"{place}: writable, locks work, {free / 2**30:.0f} GiB free")


def _lock(descriptor: int) -> None:
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def _python() -> Check:
    text = ".".join(map(str, sys.version_info[:3]))
    fits = sys.version_info >= (3, 11)
    return Check("python", CheckResult.GOOD if fits else CheckResult.BAD, f"{text}, wanted >=3.11")


def _prefect(home: Path) -> Check:
    url = os.environ.get("PREFECT_API_URL")
    if url is None:
        return Check("prefect", CheckResult.GOOD, "no server: each run starts one of its own")
    return _answers("prefect", url, "PREFECT_API_URL")


def _mlflow(home: Path) -> Check:
    chosen = os.environ.get("MLFLOW_TRACKING_URI")
    if chosen:
        return _chosen_mlflow(chosen)
    stack = running_stack(home)
    if stack is None:
        return Check("mlflow", CheckResult.GOOD, f"no server: runs write to {home / 'mlflow.db'}")
    return _answers("mlflow", stack.mlflow_url, "the local stack")


def _chosen_mlflow(uri: str) -> Check:
    """Check the MLflow that the environment names.

    One behind a proxy may answer other paths than ``/health``, and ask who is there.
    """
    if not uri.startswith(("http://", "https://")):
        return Check("mlflow", CheckResult.GOOD, f"MLFLOW_TRACKING_URI: {uri}")
    return _answers("mlflow", uri, "MLFLOW_TRACKING_URI", refusals=True)


def _answers(name: str, url: str, named_by: str, *, refusals: bool = False) -> Check:
    """Ask a server for its health; with ``refusals`` those are answers of a server, too."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=5):
            return Check(name, CheckResult.GOOD, f"{url} answers")
    except OSError as error:
        if refusals and isinstance(error, urllib.error.HTTPError) and error.code < 500:
            return Check(name, CheckResult.GOOD, f"{url} answers (HTTP {error.code})")
        at_home = "127.0.0.1" in url
        advice = "Start it: `ratchet up`." if at_home else f"Is {named_by} right?"
        return Check(name, CheckResult.BAD, f"{url} does not answer ({error}). {advice}")


def interrupted_runs(runs: Path) -> Iterator[Check]:
    """Name the runs whose process is gone though nobody has ended them."""
    from ratchet.tracking.run_folder import list_runs

    for folder in list_runs(runs):
        if folder.status == "interrupted":
            details = f"interrupted. Go on with it: `ratchet resume {folder.run_id}`"
            yield Check(f"run {folder.run_id}", CheckResult.WARNING, details)


def lost_flow_run_checks(home: Path) -> Iterator[Check]:
    """Name the flow runs that the server takes for running though no process works on them."""
    url = os.environ.get("PREFECT_API_URL")
    if url is None:
        return
    from prefect.client.orchestration import get_client

    from flows.process.lost_runs import lost_flow_runs

    stack = running_stack(home)
    is_ours = stack is not None and stack.prefect_api_url == url
    with get_client(sync_client=True) as client:
        for run in lost_flow_runs(client, pool_is_here=is_ours):
            details = (
                f"{run.state_name} in Prefect, but no process works on it: it may hold up its"
                " schedule. Starting the local stack again (`ratchet down`, `ratchet up`) marks it"
                " as crashed; for another server, change its state in Prefect's UI"
            )
            yield Check(f"flow run {run.name}", CheckResult.WARNING, details)


def _threads() -> Check:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    details = f"{threads} per process, {cores} cores"
    if threads == "1":
        return Check("threads", CheckResult.GOOD, details)
    return Check("threads", CheckResult.WARNING, f"{details}; small nets are fastest with one")


def _ports(home: Path) -> Iterator[Check]:
    stack = running_stack(home)
    if stack is not None:
        details = f"Prefect {stack.prefect_port}, MLflow {stack.mlflow_port}: the local stack is up"
        yield Check("ports", CheckResult.GOOD, details)
        return
    for port in (4200, 5000):
        with socket.socket() as probe:
            probe.settimeout(1)
            taken = probe.connect_ex(("127.0.0.1", port)) == 0
        details = f"{port} is taken; `ratchet up` will use another" if taken else f"{port} is free"
        yield Check("port", CheckResult.WARNING if taken else CheckResult.GOOD, details)
