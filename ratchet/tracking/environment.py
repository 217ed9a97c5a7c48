"""Environment of a run: Python, packages, platform, processor, code state, user and command.

Recorded in the run's manifest; never part of a stage's key.
"""

from __future__ import annotations

import functools
import getpass
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ratchet.tracking.urls import without_logins

PACKAGES = (
    "ratchet-experiments",
    "torch",
    "tensordict",
    "torchrl",
    "numpy",
    "scipy",
    "networkx",
    "safetensors",
    "transformers",
    "trl",
    "peft",
    "openai",
    "prefect",
    "mlflow",
    "pydantic",
    "fsspec",
)


class CodeState(BaseModel):
    """The code a run was started from.

    ``commit`` is None outside a git repository; ``dirty`` is true if tracked files differ from the
    commit or untracked files exist.
    """

    model_config = ConfigDict(frozen=True)

    commit: str | None = None
    branch: str | None = None
    dirty: bool = False

    @property
    def short(self) -> str:
        """The commit's prefix, followed by "+" if dirty; empty outside a repository."""
        return (self.commit or "")[:12] + ("+" if self.dirty else "")


_COMPUTING = ("ratchet-experiments", "torch", "numpy", "tensordict", "torchrl", "transformers")


def library_versions() -> dict[str, str]:
    """Return the versions of Ratchet and of the libraries that compute, for a stage's manifest."""
    return {name: version for name, version in _versions().items() if name in _COMPUTING}


def capture_versions() -> dict[str, str]:
    """List the versions of Python, the platform and the packages that results may depend on."""
    return dict(_versions())


@functools.cache  # constant within a process
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def capture_code_state(folder: Path | None = None) -> CodeState:
    """Return the git state of a folder's repository; of this package's when None."""
    where = Path(__file__).parent if folder is None else folder
    commit = _git(where, "rev-parse", "HEAD")
    if commit is None:
        return CodeState()
    branch = _git(where, "rev-parse", "--abbrev-ref", "HEAD")
    return CodeState(commit=commit, branch=branch, dirty=bool(_git(where, "status", "--porcelain")))


def _git(folder: Path, *arguments: str) -> str | None:
    """Run git; None where there is no git or no repository."""
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


_LINUX = Path("/proc/cpuinfo")


def made_with() -> dict[str, str]:
    """Return versions of packages, platform and processor, on which a run's numbers may depend."""
    return {**capture_versions(), "processor": processor_name()}


@functools.cache
def processor_name() -> str:
    """Return the processor's name, or its architecture if the system does not report it."""
    try:
        lines = _LINUX.read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor() or platform.machine()


def author() -> str | None:
    """Return the name of this process's user; None if it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name, in a container
        return None


def command_line() -> list[str]:
    """Return the command that started this process, without credentials, for manifests."""
    return [without_logins(argument) for argument in sys.argv]
