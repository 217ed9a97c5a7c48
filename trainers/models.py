"""Models of an experiment's agents in a folder: weights of networks, names of chat models.

Networks are written in the format of tensor trainers' states, so that any run can load them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import CheckPointNotFoundError, StateError

if TYPE_CHECKING:
    from ratchet.scenarios.base import AnyScenarioInstance

GROUPS_FILE = "shared_model_groups.json"


def save_models(instance: AnyScenarioInstance, folder: Path, iteration: int = 0) -> None:
    """Write the agents' models and the normalisation of their observations into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    agents = instance.combined_agents
    if agents is not None:
        from trainers.tensordict.states import snapshots
        from trainers.tensordict.states.state import State

        State(
            iteration=iteration,
            stage="train",
            agents=snapshots.take_agents(agents),
            normalization=snapshots.take_normalization(agents),
        ).save(folder)
    groups = instance.shared_model_groups
    if groups:
        states = {name: groups[name].state.to_dict() for name in groups}
        text = json.dumps(states, sort_keys=True, indent=1)
        (folder / GROUPS_FILE).write_text(text + "\n", encoding="utf-8")


def load_models(instance: AnyScenarioInstance, folder: Path) -> None:
    """Load the agents' models from a folder that :func:`save_models` or a tensor trainer wrote."""
    agents = instance.combined_agents
    if agents is not None:
        from trainers.tensordict.states import snapshots
        from trainers.tensordict.states.state import State

        state = State.load(folder)
        snapshots.load_agents(agents, state.agents)
        snapshots.load_normalization(agents, state.normalization)
    if instance.shared_model_groups:
        _load_groups(instance, folder / GROUPS_FILE)


def _load_groups(instance: AnyScenarioInstance, file: Path) -> None:
    from ratchet.scenarios.pure_text.agents.group_state import PureTextSharedModelGroupState

    if not file.is_file():
        raise CheckPointNotFoundError(f"no saved models in {file.parent}: {file.name} is missing.")
    saved = json.loads(file.read_text(encoding="utf-8"))
    if saved.keys() != instance.shared_model_groups.keys():
        raise StateError(
            f"{file}: got the shared model groups {sorted(saved)}, expected"
            f" {sorted(instance.shared_model_groups)}. It belongs to other agents."
        )
    for name, group in instance.shared_model_groups.items():
        group.state = PureTextSharedModelGroupState.from_dict(saved[name])
