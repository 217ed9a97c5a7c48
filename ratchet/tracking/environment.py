"""What a run ran on: Python, packages, platform, and the state of the code.

Recorded in the run's manifest; never part of a stage's key.
"""

from __future__ import annotations

import functools
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict

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

    ``commit`` is None outside a git repository; ``dirty`` says that tracked files differ
    from the commit or that untracked ones lie about.
    """

    model_config = ConfigDict(frozen=True)

    commit: str | None = None
    branch: str | None = None
    dirty: bool = False


def capture_versions() -> dict[str, str]:
    """List the versions of Python, the platform and the packages that results may depend on."""
    return dict(_versions())


@functools.cache  # what is imported stays what it is
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def capture_code_state(folder: Path | None = None) -> CodeState:
    """Ask git about the repository of a folder; of this package when None."""
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
