"""Which processor a run was made on: it rounds sums its own way, which training magnifies."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

from ratchet.tracking.environment import capture_versions

_LINUX = Path("/proc/cpuinfo")


def made_with() -> dict[str, str]:
    """List what a run's numbers may depend on: packages, platform and processor."""
    return {**capture_versions(), "processor": processor_name()}


@functools.cache
def processor_name() -> str:
    """Return the processor's name, or its architecture where the system does not tell."""
    try:
        lines = _LINUX.read_text("utf-8", "replace").splitlines()
    except OSError:
        lines = []
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor() or platform.machine()
