"""Checks of this machine: Python, packages, threads, sandbox, ports, folders and the store."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from flows.process.checks.base import (
    SKEW_SECONDS,
    Check,
    CheckResult,
    Installation,
    bad,
    good,
    warning,
)
from flows.process.stack_file import running_stack
from ratchet.errors import RatchetError
from ratchet.lazy import EXTRAS, is_installed

_DISTRIBUTION = "ratchet-experiments"
_INCOMPATIBLE = ("torchvision", "timm")
"""Packages that fail to import with the required torch version and break packages that use them."""
_LITTLE_SPACE = 2 * 2**30
_TOO_LITTLE_SPACE = 32 * 2**20
"""Minimum free space in bytes at which the store starts stages."""


def python(installation: Installation) -> Iterator[Check]:
    """Check that Python is recent enough."""
    text = f"{'.'.join(map(str, sys.version_info[:3]))}, required >=3.11"
    fits = sys.version_info >= (3, 11)
    advice = "" if fits else ": `make setup PYTHON=python3.11`"
    yield Check("python", CheckResult.GOOD if fits else CheckResult.BAD, text + advice)


def versions(installation: Installation) -> Iterator[Check]:
    """Compare installed versions with the supported ranges."""
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import Requirement

    try:
        lines = requires(_DISTRIBUTION) or []
    except PackageNotFoundError:
        yield warning("versions", "not installed: `make setup`, or `pip install -e .`")
        return
    for requirement in map(Requirement, lines):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            yield bad(requirement.name, f"missing: pip install '{requirement}'")
            continue
        fits = requirement.specifier.contains(installed, prereleases=True)
        text = f"{installed}, required {requirement.specifier}"
        advice = "" if fits else f": pip install '{requirement}'"
        verdict = CheckResult.GOOD if fits else CheckResult.BAD
        yield Check(requirement.name, verdict, text + advice)


def extras(installation: Installation) -> Iterator[Check]:
    """List installed optional packages, and how to install the others."""
    for extra in dict.fromkeys(EXTRAS.values()):
        packages = [package for package, its_extra in EXTRAS.items() if its_extra == extra]
        missing = [package for package in packages if not is_installed(package)]
        if missing:
            advice = f"missing {', '.join(missing)}: pip install '{_DISTRIBUTION}[{extra}]'"
            yield warning(f"[{extra}]", advice)
        else:
            yield good(f"[{extra}]", ", ".join(packages))


def incompatible_packages(installation: Installation) -> Iterator[Check]:
    """List packages that fail to import with the installed torch."""
    for name in _INCOMPATIBLE:
        if is_installed(name):
            yield warning(name, f"incompatible with this torch: `pip uninstall {name}`")


def threads(installation: Installation) -> Iterator[Check]:
    """Check the number of threads of numerical libraries."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    details = f"{threads} per process, {cores} cores"
    if threads == "1":
        yield good("threads", details)
    else:
        advice = "small networks are fastest with one: `export OMP_NUM_THREADS=1`"
        yield warning("threads", f"{details}; {advice}")


def ports(installation: Installation) -> Iterator[Check]:
    """Check which of the default ports are free."""
    stack = running_stack(installation.home)
    if stack is not None:
        details = f"Prefect {stack.prefect_port}, MLflow {stack.mlflow_port}: the local stack"
        yield good("ports", details)
        return
    for port in (4200, 5000):
        with socket.socket() as probe:
            probe.settimeout(1)
            occupied = probe.connect_ex(("127.0.0.1", port)) == 0
        if occupied:
            yield warning("port", f"{port} is in use; `ratchet up` will choose a different one")
        else:
            yield good("port", f"{port} is free")


def sandbox(installation: Installation) -> Iterator[Check]:
    """Check the isolation of tested programs, which are untrusted, from this machine."""
    from ratchet.errors import SandboxError
    from ratchet.scenarios.sandbox.programs import sandbox_isolation

    try:
        isolation = sandbox_isolation()
    except SandboxError as error:
        yield bad("sandbox", str(error))
        return
    if isolation.left_open:
        details = f"tested programs are not isolated from {' or '.join(isolation.left_open)}"
        yield warning("sandbox", details)
        return
    landlock = f"Landlock {isolation.landlock}" if isolation.landlock else "no Landlock"
    spaces = ", ".join(isolation.namespaces) or "none allowed"
    yield good("sandbox", f"seccomp, {landlock}, namespaces: {spaces}")


def folders(installation: Installation) -> Iterator[Check]:
    """Check home, runs folder and store."""
    yield storage("home", installation.home)
    yield storage("runs", installation.runs)
    if "://" in installation.store_url:
        yield _remote_store(installation.store_url)
    elif installation.store is not None:
        yield storage("store", Path(installation.store))


def storage(name: str, folder: Path) -> Check:
    """Check that a folder, or its nearest existing parent, is writable, lockable and not full."""
    path = folder.resolve()
    while not path.exists():
        path = path.parent
    alternative = f"`ratchet run … settings.{name}=FOLDER`"
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=".ratchet-doctor-") as probe:
            skew = os.fstat(probe.fileno()).st_mtime - time.time()
            try:
                _lock(probe.fileno())
            except OSError as error:
                details = f"{path} cannot be locked ({error}), as network folders without flock"
                return bad(name, f"{details}. Choose a lockable folder: {alternative}")
    except OSError as error:
        details = f"{path} is not writable: {error}. Change its mode: `chmod u+rwx {path}`"
        return bad(name, f"{details}, or choose another folder: {alternative}")
    free = shutil.disk_usage(path).free
    if free < _TOO_LITTLE_SPACE:
        return bad(name, f"{path} is full: {free:,} bytes free. List garbage: `ratchet gc`")
    if abs(skew) > SKEW_SECONDS:
        details = f"{path}: its file server's clock is {skew:+.0f} s off this machine's"
        return warning(name, f"{details}. Set both: `sudo timedatectl set-ntp true`")
    space = f"{path}: writable, locks work, {free / 2**30:.0f} GiB free"
    if free < _LITTLE_SPACE:
        return warning(name, f"{space}. List garbage: `ratchet gc`")
    return good(name, space)


def _lock(descriptor: int) -> None:
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def _remote_store(url: str) -> Check:
    """Check that a store at a URL is readable and writable, and supports claims."""
    from ratchet.store.remote import RemoteFolder
    from ratchet.store.store import StageStore

    try:
        backend = StageStore(url).backend
        number = len(list(backend.keys()))
        conditional = isinstance(backend, RemoteFolder) and backend.supports_conditions()
    except Exception as error:  # noqa: BLE001 -- each service's client raises custom errors
        expected = isinstance(error, (RatchetError, OSError))
        reason = str(error) if expected else f"{type(error).__name__}: {error}"
        return bad("store", f"{url}: {reason}. Choose another: `ratchet run … settings.store=URL`")
    if not conditional:
        details = f"{url}: {number} stages, no conditional writes: two machines may compute the"
        return warning("store", f"{details} same stage concurrently. Use S3, or one machine")
    return good("store", f"{url}: {number} stages, writable, claims work across machines")
