"""State of a text trainer: its position in the loop, and the current models."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, get_args

from ratchet.errors import CheckPointNotFoundError, StateError
from ratchet.scenarios.pure_text.agents.group_state import PureTextSharedModelGroupState
from trainers.custom_state import Attributes, load_attributes, save_attributes

SCHEMA = 1
STATE_FILE = "state.json"

TrainLoopStage: TypeAlias = Literal[
    "sample_rollouts",
    "log_stats",
    "test_during_training",
    "create_fine_tune_jobs",
    "await_fine_tune_jobs",
    "test",
    "done",
]


@dataclass(frozen=True)
class AgentState:
    """The model of an agent, which is that of the agent's shared model group."""

    shared_model_group: str
    model_name: str


@dataclass(frozen=True)
class State:
    """State from which a text trainer continues.

    Attributes
    ----------
    train_loop_stage
        The next stage.
    shared_model_groups
        Each group's model, its previous models, and the job that trains the next one.
    base_run_state_artifact_version
        For runs that only test: their position in the states of the base run.
    callbacks
        The callbacks' states, and whether one has stopped the run; empty without callbacks. See
        :class:`trainers.callbacks.callback_list.CallbackList`.
    attributes
        Attributes assigned by a custom trainer class, stored in separate files.
    """

    iteration: int = 0
    agents: dict[str, AgentState] = field(default_factory=dict)
    train_loop_stage: TrainLoopStage = "sample_rollouts"
    shared_model_groups: dict[str, PureTextSharedModelGroupState] = field(default_factory=dict)
    base_run_state_artifact_version: int = 0
    callbacks: dict[str, Any] = field(default_factory=dict)
    attributes: Attributes = field(default_factory=dict, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {
            "schema": SCHEMA,
            "iteration": self.iteration,
            "agents": {name: dataclasses.asdict(agent) for name, agent in self.agents.items()},
            "train_loop_stage": self.train_loop_stage,
            "shared_model_groups": {
                name: group.to_dict() for name, group in self.shared_model_groups.items()
            },
            "base_run_state_artifact_version": self.base_run_state_artifact_version,
            **({"callbacks": self.callbacks} if self.callbacks else {}),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the state of plain data; the inverse of :meth:`to_dict`.

        Raises StateError if the data have another schema or structure.
        """
        if data.get("schema") != SCHEMA:
            raise StateError(f"state: got schema {data.get('schema')!r}, expected {SCHEMA}.")
        if data.get("train_loop_stage") not in get_args(TrainLoopStage):
            raise StateError(
                f"state: got train_loop_stage {data.get('train_loop_stage')!r}, expected one of"
                f" {', '.join(get_args(TrainLoopStage))}."
            )
        try:
            return cls(
                iteration=data["iteration"],
                agents={name: AgentState(**agent) for name, agent in data["agents"].items()},
                train_loop_stage=data["train_loop_stage"],
                shared_model_groups={
                    name: PureTextSharedModelGroupState.from_dict(group)
                    for name, group in data["shared_model_groups"].items()
                },
                base_run_state_artifact_version=data["base_run_state_artifact_version"],
                callbacks=data.get("callbacks", {}),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise StateError(f"state: unexpected structure: {error!r}.") from error

    def save(self, directory: str | Path) -> None:
        """Write the state atomically into a folder, created if missing."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), sort_keys=True, indent=1)
        temporary_file = directory / f".{STATE_FILE}.{os.getpid()}"
        temporary_file.write_text(text + "\n", encoding="utf-8")
        save_attributes(self.attributes, directory)
        os.replace(temporary_file, directory / STATE_FILE)

    @classmethod
    def load(cls, directory: str | Path) -> Self:
        """Read a state that :meth:`save` wrote; equal to the saved one.

        Raises CheckPointNotFoundError if the folder has none, and StateError if it cannot be read.
        """
        path = Path(directory) / STATE_FILE
        if not path.is_file():
            raise CheckPointNotFoundError(
                f"no saved state in {directory}: {STATE_FILE} is missing. Pass the folder that"
                " State.save wrote, or train first."
            )
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise StateError(f"the state in {directory} is damaged: {error}.") from error
        return dataclasses.replace(cls.from_dict(data), attributes=load_attributes(path.parent))
