"""``RunManifest``: all that is known about a run except its numbers.

Written by :class:`ratchet.tracking.run_folder.RunFolder` as ``manifest.json``.
"""

from __future__ import annotations

import time
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from ratchet.tracking.environment import CodeState

RunStatus = Literal["running", "completed", "failed", "interrupted", "cancelled", "pruned"]
"""How a run stands: ``interrupted`` by a signal, a kill or Ctrl-C, ``cancelled`` on request,
``pruned`` by the sweep that it belongs to, before its end."""
ModelKind = Literal["networks", "language_model", "chat_models"]
"""What agents are to whoever loads them: what plays, what writes, or what services have."""
MAIN_ARM = "main"
ITERATION_STAGES = (
    "sample_rollouts",
    "log_stats",
    "test_during_training",
    "create_fine_tune_jobs",
    "await_fine_tune_jobs",
)
"""The stages of an iteration of chat models, in the order in which they may begin."""


class StageRecord(BaseModel):
    """One stage of a run: where its result lies, and whether it had to be made.

    ``iteration`` is the number of iterations done after the stage and ``start_iteration`` before
    it; ``seconds`` is how long it took when it was made; ``hit`` says that it was found in the
    store and ``reason`` why or why not.
    """

    model_config = ConfigDict(frozen=True)

    arm: str = MAIN_ARM
    stage: str
    iteration: int = 0
    start_iteration: int = 0
    key: str
    hit: bool
    reason: str = ""
    seconds: float = 0.0

    @property
    def place(self) -> tuple[str, str, int, int]:
        """What tells this stage from the run's others."""
        return (self.arm, self.stage, self.start_iteration, self.iteration)

    @property
    def iterations(self) -> range:
        """The iterations it has done, or the one that it is a part of; none for what runs once."""
        kind = self.stage.partition("-")[0]
        if kind == "train":
            return range(self.start_iteration, self.iteration)
        if kind in (*ITERATION_STAGES, "rollouts"):
            return range(self.iteration, self.iteration + 1)
        return range(0)


class RunManifest(BaseModel):
    """What ``manifest.json`` holds.

    ``arms`` maps each arm's name to all its hyper-parameters as plain data; "main" is the
    experiment itself. ``dataset_hashes`` maps arms to dataset names to content hashes; those of
    older runs, which had one set for all arms, count for every arm. ``checkpoints``
    maps arms to paths of their final state's files. ``read_parameters`` are the dotted paths of
    what the stages of an arm have read so far. ``model_kinds`` says of arms what their final agents
    are to whoever loads them as a model, if that can be done. ``tracking`` is filled by the mirror.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")

    schema_version: int = 1
    run_id: str
    name: str
    status: RunStatus = "running"
    error: str | None = None
    created: float = Field(default_factory=time.time)
    updated: float = Field(default_factory=time.time)
    finished: float | None = None
    arms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    read_parameters: dict[str, list[str]] = Field(default_factory=dict)
    model_kinds: dict[str, ModelKind] = Field(default_factory=dict)
    author: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    code: CodeState = CodeState()
    seeds: dict[str, int] = Field(default_factory=dict)
    dataset_hashes: dict[str, dict[str, str]] = Field(default_factory=dict)
    parent_run_id: str | None = None
    fork_parent: str | None = None
    prefect_flow_run_ids: list[str] = Field(default_factory=list)
    prefect_ui_url: str | None = None
    command: list[str] = Field(default_factory=list)
    stages: list[StageRecord] = Field(default_factory=list)
    checkpoints: dict[str, list[str]] = Field(default_factory=dict)
    tracking: dict[str, Any] = Field(default_factory=dict)

    @field_validator("dataset_hashes", mode="before")
    @classmethod
    def _by_arm(cls, value: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 -- as it was read
        """Give every arm the one set that older runs have."""
        if isinstance(value, dict) and any(isinstance(each, str) for each in value.values()):
            return {arm: value for arm in info.data.get("arms", {})}
        return value
