"""Experiment files of other systems: recognised by their keys, and refused with a guide's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ratchet.errors import ParameterError

_GUIDES = "https://ratchet-experiments.github.io/ratchet/guides/"
_TRAINERS = f"{_GUIDES}language_models/#custom-trainers"


@dataclass(frozen=True)
class OtherSystem:
    """A system: top-level keys of its files, of which two identify it, and the guide for users."""

    name: str
    keys: frozenset[str]
    guide: str


OTHER_SYSTEMS = (
    OtherSystem(
        "NexRL",
        frozenset(
            (
                *("project_name", "experiment_name", "rollout_worker", "trajectory_pool"),
                *("trajectory_loader", "train_worker", "weight", "service", "launch_mode"),
            )
        ),
        _TRAINERS,
    ),
    OtherSystem(
        "verl",
        frozenset(("actor_rollout_ref", "critic", "reward_model", "algorithm", "data", "ray_init")),
        _TRAINERS,
    ),
    OtherSystem(
        "prime-rl",
        frozenset(("orchestrator", "inference", "max_steps", "ckpt", "wandb", "async_level")),
        _TRAINERS,
    ),
    OtherSystem(
        "a sweep of W&B",
        frozenset(("program", "method", "metric", "parameters", "early_terminate", "run_cap")),
        f"{_GUIDES}comparing/#sweep-strategies",
    ),
)


def refuse_other_systems(data: Mapping[str, object], path: Path) -> None:
    """Refuse a file that looks like another system's."""
    if "scenario" in data or "base_run" in data or "defaults" in data:
        return
    matches = {system: system.keys & data.keys() for system in OTHER_SYSTEMS}
    system = max(matches, key=lambda each: len(matches[each]))
    if len(matches[system]) >= 2:
        keys = ", ".join(sorted(matches[system]))
        raise ParameterError(
            f"{path}: this looks like a file of {system.name} ({keys}), expected an experiment of"
            f" Ratchet (scenario, trainer, dataset …). {system.guide} explains how to move;"
            " `ratchet new NAME` creates an experiment to start from."
        )
