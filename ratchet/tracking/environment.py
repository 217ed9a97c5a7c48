"""Environment of a run: Python, packages, platform, processor, code state, user and command.

Recorded in the run's manifest; never part of a stage's key.
"""

from __future__ import annotations

import functools
import getpass
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ratchet.tracking.urls import without_logins

RATCHET = "ratchet-experiments"
PACKAGES = (
    RATCHET,
    "torch",
    "tensordict",
    "torchrl",
    "numpy",
    "scipy",
    "networkx",
    "safetensors",
    "transformers",
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


_COMPUTING = (RATCHET, "torch", "numpy", "tensordict", "torchrl", "transformers")


def library_versions() -> dict[str, str]:
    """Return the versions of Ratchet and of the libraries that compute, for a stage's manifest."""
    return {name: version for name, version in _versions().items() if name in _COMPUTING}


def changed_libraries(versions: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Compare a stage's library versions with the installed ones: name, stored, installed.

    Ratchet's own version is left out, because keys contain the code that computes a stage.
    """
    installed = library_versions()
    return [
        (name, version, installed.get(name, "not installed"))
        for name, version in versions.items()
        if name != RATCHET and installed.get(name) != version
    ]


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


_FLAGS = re.compile(
    r"(sse4_[12]|avx\w*|fma4?|f16c|bmi[12]|amx_\w+|asimd\w*|sve\w*|i8mm|bf16|neon)$"
)
"""Instruction sets that numerical libraries choose their kernels by."""


def made_with(num_threads: int | None = None) -> dict[str, str]:
    """Return versions, platform, processor and libraries, on which a run's numbers may depend.

    ``num_threads`` is the number of torch's threads, by default the current one. Details of torch
    and NumPy are missing if they are not imported.
    """
    return {**capture_versions(), **processor(), **_numerical_libraries(num_threads)}


@functools.cache
def processor() -> dict[str, str]:
    """Return the processor's name, family, model and instruction sets, if reported."""
    try:
        lines = _LINUX.read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    pairs = [line.partition(":") for line in lines]
    fields: dict[str, str] = {}
    for name, _, value in pairs:
        fields.setdefault(name.strip(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    described = {"processor": name}
    numbers = [
        f"{part} {fields[field]}"
        for field, part in (("cpu family", "family"), ("model", "model"), ("stepping", "stepping"))
        if field in fields
    ]
    if numbers:
        described["processor model"] = " ".join([fields.get("vendor_id", ""), *numbers]).strip()
    flags = fields.get("flags") or fields.get("Features") or ""
    sets = sorted(filter(_FLAGS.match, flags.split()))
    return described | ({"instruction sets": " ".join(sets)} if sets else {})


def _numerical_libraries(num_threads: int | None) -> dict[str, str]:
    """Return the kernels and threads of torch and the BLAS of torch and NumPy, if imported."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    described = {}
    if torch is not None:
        described["torch CPU capability"] = torch.backends.cpu.get_cpu_capability()
        described["torch threads"] = str(num_threads or torch.get_num_threads())
        config = str(torch.__config__.show())
        libraries = re.findall(r"(Math Kernel Library|MKL-DNN|OpenBLAS)\D*(\S+)", config)
        described["torch BLAS"] = " and ".join(f"{name} {version}" for name, version in libraries)
    if numpy is not None:
        blas = numpy.show_config("dicts").get("Build Dependencies", {}).get("blas", {})
        described["numpy BLAS"] = f"{blas.get('name', 'none')} {blas.get('version', '')}".strip()
    return described


def author() -> str | None:
    """Return the name of this process's user; None if it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name, in a container
        return None


_RECORDED: ContextVar[Sequence[str] | None] = ContextVar("recorded_command", default=None)


@contextmanager
def recorded_command(command: Sequence[str]) -> Iterator[None]:
    """Record a command in manifests, instead of this process's, within a block.

    A study's runs and pages thus name the commands that repeat them.
    """
    token = _RECORDED.set(command)
    try:
        yield
    finally:
        _RECORDED.reset(token)


def command_line() -> list[str]:
    """Return the command that started this process, without credentials, for manifests."""
    return [without_logins(argument) for argument in _RECORDED.get() or sys.argv]
