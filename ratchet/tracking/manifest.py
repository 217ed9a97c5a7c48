"""``RunManifest``: metadata of a run.

Written by :class:`ratchet.tracking.run_folder.RunFolder` as ``manifest.json``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ratchet.tracking.boot_clock import BootTime
from ratchet.tracking.environment import CodeState
from ratchet.tracking.stage_kinds import CHAT_ITERATION, StageKind, kind_of

RunStatus = Literal["running", "completed", "failed", "interrupted", "cancelled", "pruned"]
"""Status of a run: ``interrupted`` by a signal, a kill or Ctrl-C, ``cancelled`` on request,
``pruned`` early by its sweep."""
ModelKind = Literal["networks", "language_model", "chat_models"]
"""Kind of agents when loaded: networks that play, a local language model, or services' models."""
MAIN_ARM = "main"
ITERATION_STAGES = tuple(kind.name for kind in CHAT_ITERATION)


class StageRecord(BaseModel):
    """One stage of a run: key of its result, and whether it was a cache hit.

    ``iteration`` is the number of iterations done after the stage and ``start_iteration`` before
    it; ``seconds`` is the duration of its computation; ``hit`` is whether the store had it, with
    the ``reason``.
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
        """Identity of the stage within the run."""
        return (self.arm, self.stage, self.start_iteration, self.iteration)

    def iterations(self, kind: StageKind) -> range:
        """Return the iterations it has done, or is part of; none for stages of the run."""
        if kind.span == "iterations":
            return range(self.start_iteration, self.iteration)
        if kind.span == "iteration":
            return range(self.iteration, self.iteration + 1)
        return range(0)


class RunManifest(BaseModel):
    """Content of ``manifest.json``.

    ``arms`` maps each arm's name to all its hyper-parameters as plain data; "main" is the
    experiment itself. ``dataset_hashes`` maps arms to dataset names to content hashes.
    ``checkpoints`` maps arms to paths of their final state's files. ``read_parameters`` are the
    dotted paths of the parameters that the stages of an arm have read so far. ``model_kinds`` maps
    arms to the kind of their final agents, if they can be loaded as a model, ``optimizer_paths`` to
    the path of the parts of the final state that only training reads, such as
    "learners/*/optimizer". ``started`` is when a process last started the run. ``kinds`` are the
    kinds of stages that plug-ins declare. The mirror fills ``tracking``.
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
    started: BootTime | None = None
    arms: dict[str, dict[str, Any]] = Field(default_factory=dict)
    read_parameters: dict[str, list[str]] = Field(default_factory=dict)
    model_kinds: dict[str, ModelKind] = Field(default_factory=dict)
    optimizer_paths: dict[str, str] = Field(default_factory=dict)
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
    kinds: list[StageKind] = Field(default_factory=list)
    checkpoints: dict[str, list[str]] = Field(default_factory=dict)
    tracking: dict[str, Any] = Field(default_factory=dict)

    def kind_of(self, stage: str) -> StageKind:
        """Return the kind of a stage's name, such as "train" or "pretrain-verifier"."""
        return kind_of(stage, self.kinds)

    def learned_iterations(self, arm: str) -> int:
        """Return the number of an arm's trained iterations; in a retest, of the last state."""
        records = [(r, self.kind_of(r.stage)) for r in self.stages if r.arm == arm]
        trained = [r.iterations(kind).stop for r, kind in records if kind.state == "trained"]
        tested = [r.iteration for r, kind in records if kind.is_test]
        return max(trained or tested, default=0)

    @property
    def experiment_name(self) -> str:
        """The experiment that mirrors list the run in: that of the settings, or the run's own."""
        return str(self.settings.get("experiment_name") or self.name)

    @property
    def flow_run_url(self) -> str | None:
        """The page of its last flow run on the Prefect server it ran with, if any."""
        if not self.prefect_ui_url or not self.prefect_flow_run_ids:
            return None
        return f"{self.prefect_ui_url.rstrip('/')}/runs/flow-run/{self.prefect_flow_run_ids[-1]}"


Span = tuple[str, int, int]
"""A phase's name, its first iteration, and the one after its last."""


def phase_ranges(hyper_params: Mapping[str, Any]) -> list[Span]:
    """Return the phases of an arm in order."""
    spans: list[Span] = []
    for phase in hyper_params.get("phases", ()):
        start = spans[-1][2] if spans else 0
        spans.append((str(phase["name"]), start, start + int(phase["num_iterations"])))
    return spans


def describe_phases(hyper_params: Mapping[str, Any]) -> str:
    """Write the phases as ``warm_up 0–15 · joint 15–45``; empty without phases."""
    spans = phase_ranges(hyper_params)
    return " · ".join(f"{name} {start}–{stop}" for name, start, stop in spans)
