"""What a fork is: where it begins, and what it shares with its parent."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from ratchet.errors import DataError, ParameterError
from ratchet.tracking.files import write_atomically
from ratchet.tracking.manifest import ITERATION_STAGES, StageRecord

if TYPE_CHECKING:
    from tasks.stages.calls import StageCall

_POINT = re.compile(r"(\d+)(?::([a-z_]+))?")
FORK_FILE = "fork.json"


class Fork(BaseModel):
    """What a forked run shares with its parent: kept in the run folder as ``fork.json``."""

    model_config = ConfigDict(frozen=True)

    parent: str
    iteration: int
    stage: str = ""
    stages: list[StageRecord]

    @property
    def point(self) -> ForkPoint:
        """The first stage that a fork of chat models does itself."""
        return ForkPoint.at(self.iteration, self.stage or ITERATION_STAGES[0])

    def write(self, folder: Path) -> None:
        """Write the file into a run's folder, made if need be."""
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FORK_FILE, self.model_dump_json(indent=1))

    @classmethod
    def read(cls, folder: Path) -> Fork | None:
        """Read a run's file; None if the run is no fork, DataError if the file is damaged."""
        path = folder / FORK_FILE
        if not path.exists():
            return None
        try:
            return cls.model_validate(json.loads(path.read_bytes()))
        except (ValueError, ValidationError) as error:
            raise DataError(f"{path}: {error}. Remove the run's folder and fork again.") from error


@dataclass(frozen=True, order=True)
class ForkPoint:
    """The first stage that a fork does itself: of iteration ``iteration``, the stage's place."""

    iteration: int
    place: int = 0

    @classmethod
    def at(cls, iteration: int, stage: str = ITERATION_STAGES[0]) -> ForkPoint:
        """Make the point before a stage of an iteration; ParameterError if there is none such."""
        if stage not in ITERATION_STAGES:
            raise ParameterError(
                f"fork: got the stage {iteration}:{stage}, expected K or K:STAGE with one of"
                f" {', '.join(ITERATION_STAGES)}."
            )
        return cls(iteration, ITERATION_STAGES.index(stage))

    @property
    def needed(self) -> list[tuple[str, int]]:
        """The stages (name, iteration) that a fork continues directly, from its parent."""
        before = self.iteration - 1
        state = ("await_fine_tune_jobs", before) if self.iteration else ("initial_state", 0)
        stages = ("sample_rollouts", "create_fine_tune_jobs")
        return [state] + [
            (name, self.iteration) for name in stages if ITERATION_STAGES.index(name) < self.place
        ]

    def is_after(self, call: StageCall) -> bool:
        """Return whether a stage comes before the point."""
        if call.stage == "initial_state":
            return self > ForkPoint(0)
        if call.stage not in ITERATION_STAGES:
            return False
        return ForkPoint(call.iteration, ITERATION_STAGES.index(call.stage)) < self


def parse_stage(from_stage: str | int) -> int:
    """Read "3" or "3:train" as 3; ParameterError for anything else."""
    iteration, stage = parse_point(from_stage)
    if stage not in ("", "train"):
        raise ParameterError(
            f"fork: got the stage {from_stage!r}, expected K or K:train, the first iteration that"
            " the fork does itself."
        )
    return iteration


def parse_point(from_stage: str | int) -> tuple[int, str]:
    """Read "3:create_fine_tune_jobs" as its two parts, the second empty if it is not there.

    Raises ParameterError for anything else.
    """
    match = _POINT.fullmatch(str(from_stage))
    if match is None:
        raise ParameterError(
            f"fork: got the stage {from_stage!r}, expected K, K:train, or K:STAGE of chat models."
        )
    return int(match.group(1)), match.group(2) or ""
