"""Say what a stage spends its time on, where ``settings.profiler`` asks for it.

Written into the run folder, never into the stage's own: a profile is no result, and no two are
the same.
"""

from __future__ import annotations

import cProfile
import io
import pstats
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.tracking.files import write_atomically
from ratchet.tracking.run_folder import RunFolder

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings
    from tasks.stages.calls import StageCall

NUM_FUNCTIONS = 60


@contextmanager
def profiled(call: StageCall, settings: ExperimentSettings) -> Iterator[None]:
    """Write what the block spends its time on to ``profiles/ARM/STAGE.txt`` of the run.

    Does nothing unless the run has a folder. For one stage at a time.
    """
    path = Path(settings.runs) / str(settings.run_id)
    if not (path / "manifest.json").exists():
        yield
        return
    profile = cProfile.Profile()
    profile.enable()
    try:
        yield
    finally:
        profile.disable()
        place = RunFolder(path).profiles_path / call.arm / f"{profile_name(call)}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, _describe(profile, call))


def profile_name(call: StageCall) -> str:
    """Return the name of a stage's profile: "train-10-20", "test-20", "pretrain-verifier-0"."""
    span = f"{call.start_iteration}-{call.iteration}" if call.stage == "train" else call.iteration
    return f"{call.name}-{span}"


def _describe(profile: cProfile.Profile, call: StageCall) -> str:
    """List the functions with the most time of their own, then those with the most in all."""
    text = io.StringIO()
    text.write(f"Profile of {call.label} (seconds; measuring makes everything slower)\n")
    stats = pstats.Stats(profile, stream=text).strip_dirs()
    for order in ("tottime", "cumulative"):
        stats.sort_stats(order).print_stats(NUM_FUNCTIONS)
    return text.getvalue()
