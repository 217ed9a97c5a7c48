"""Estimates of the disk space and memory that a run needs, before any stage runs."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from flows.runs.removed_states import removable_states
from ratchet.errors import DataError
from ratchet.language_models.local.model_locations import find_model
from ratchet.protocols.registry import playing_agents
from ratchet.scenarios.language_task.parameters import SMALL, LanguageAgentParameters
from ratchet.tracking.stage_kinds import PHASE_STATE
from tasks.language.keys import LanguageArmKeys
from tasks.stages.sequence import StoredStageLayout, flatten_steps
from tasks.stages.trained_keys import TrainedKeys
from trainers.language.agents import shared_models

if TYPE_CHECKING:
    from flows.runs.resolve import ResolvedExperiment
    from tasks.stages.families import AnyKeys

_FLOAT32, _BFLOAT16 = 4, 2
_MOMENTS = 2 * _FLOAT32
_GB = 1e9
_NOT_ADAPTED = ("embed_tokens", "lm_head")


@dataclass(frozen=True)
class DiskEstimate:
    """Disk space for the states that a run has yet to compute.

    Attributes
    ----------
    num_states
        The number of these states that stay on disk.
    state_bytes
        The size of the largest.
    required
        Bytes of those that stay, and of one that is removed only after its successor is stored.
    free
        Free bytes at ``location``.
    """

    num_states: int
    state_bytes: int
    required: int
    free: int
    location: str

    @property
    def warnings(self) -> list[str]:
        """A warning if the space is not free, with ways to need less."""
        if self.required <= self.free:
            return []
        return [
            f"{self.location}: {self.num_states} states of about {self.state_bytes / _GB:,.3g} GB"
            f" need {self.required / _GB:,.3g} GB, but {self.free / _GB:,.3g} GB are free. Free"
            " space, choose another location with settings.store, store fewer states with a larger"
            " settings.iterations_per_task, or let those of language models go while the run"
            " trains: settings.state_retention=checkpoints."
        ]


def estimate_disk(experiment: ResolvedExperiment) -> DiskEstimate | None:
    """Estimate the space that missing states of local models need; None if no size is known."""
    store, layout = experiment.store, StoredStageLayout(experiment.store, experiment.settings)
    staying: dict[str, int] = {}
    removed: dict[str, int] = {}
    for keys in experiment.keys:
        if not isinstance(keys, TrainedKeys) or keys.trainer_class.traits.is_remote:
            continue
        calls = list(flatten_steps(keys.stages(layout)))
        states = {call.iteration: call.key for call in calls if call.kind.state == "trained"}
        stored = {key: store.peek(key, allow_stale=True) for key in states.values()}
        sizes = [sum(e.size for e in each.files.values()) for each in stored.values() if each]
        size = max(sizes) if sizes else sum(each.state_bytes for each in _trained_models(keys))
        removable = {states[i] for i in removable_states(keys, states, experiment.settings)}
        of_phases = {call.key for call in calls if call.kind == PHASE_STATE}
        stored |= {key: store.peek(key, allow_stale=True) for key in of_phases}
        for key in (key for key in stored if size and stored[key] is None):
            (removed if key in removable else staying)[key] = size
    if not staying:
        return None
    root = store.backend.folder.root
    existing = next(folder for folder in (root, *root.parents) if folder.is_dir())
    return DiskEstimate(
        num_states=len(staying),
        state_bytes=max(staying.values()),
        required=sum(staying.values()) + max(removed.values(), default=0),
        free=shutil.disk_usage(existing).free,
        location=str(root),
    )


def memory_warnings(experiment: ResolvedExperiment) -> list[str]:
    """Return a warning for each set of local models that this machine's memory is too small for.

    Only of runs on a CPU, since a GPU need not be on this machine.
    """
    if experiment.settings.device != "cpu":
        return []
    machine = psutil.virtual_memory().total
    required = (
        _memory_bytes(_trained_models(keys))
        for keys in experiment.keys
        if isinstance(keys, TrainedKeys) and not keys.trainer_class.traits.is_remote
    )
    return [
        f"Training takes at least {size / _GB:,.3g} GB of memory for weights, gradients and the"
        f" optimizer's moments, but this machine has {machine / _GB:,.3g} GB. Train an adapter"
        " (agents.NAME.lora.rank) of a bfloat16 model (agents.NAME.precision), or choose a smaller"
        " model or a larger machine."
        for size in dict.fromkeys(required)
        if size > machine
    ]


def _memory_bytes(models: Sequence[_TrainedModel]) -> int:
    """Return the bytes of states, float32 gradients and frozen weights, which adapters share."""
    frozen = {(each.folder, each.weight_bytes): each.frozen for each in models if each.frozen}
    learning = sum(each.state_bytes + _FLOAT32 * each.trained for each in models)
    return learning + sum(count * weight_bytes for (_, weight_bytes), count in frozen.items())


@dataclass(frozen=True)
class _TrainedModel:
    """The number of a model's trained and frozen weights, and the bytes of a frozen one."""

    folder: Path
    trained: int
    frozen: int
    weight_bytes: int
    is_rounded: bool

    @property
    def state_bytes(self) -> int:
        """The bytes of its weights, moments and masters."""
        return self.trained * (_MOMENTS + _FLOAT32 + (_BFLOAT16 if self.is_rounded else 0))


def _trained_models(keys: AnyKeys) -> list[_TrainedModel]:
    """Return the sizes of an arm's language models, without those whose size is unknown."""
    if not isinstance(keys, LanguageArmKeys):
        return []
    agents = playing_agents(keys.hyper_params, keys.base_path)
    first = {model: agents[name] for name, model in shared_models(agents).items()}
    sizes = (_trained_model(keys, agent) for agent in first.values())
    return [size for size in sizes if size is not None]


def _trained_model(keys: LanguageArmKeys, agent: LanguageAgentParameters) -> _TrainedModel | None:
    if agent.model == SMALL:  # a new model of unknown vocabulary
        return None
    try:
        folder = find_model(agent.model, keys.base_path or Path())
        shapes = _read_shapes(folder)
    except DataError:  # reported by the run
        return None
    count = sum(math.prod(shape) for shape in shapes.values())
    weight_bytes = _BFLOAT16 if agent.precision == "bfloat16" else _FLOAT32
    if agent.lora.rank is None:
        return _TrainedModel(folder, count, 0, weight_bytes, agent.precision == "bfloat16")
    adapter = agent.lora.rank * _adapted_sides(shapes, agent.lora.target_modules)
    return _TrainedModel(folder, adapter, count, weight_bytes, is_rounded=False)


def _read_shapes(model: Path) -> dict[str, list[int]]:
    """Return the shapes of the weights in a model's files."""
    shapes: dict[str, list[int]] = {}
    for file in model.glob("*.safetensors"):
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        shapes |= {name: each["shape"] for name, each in header.items() if name != "__metadata__"}
    return shapes


def _adapted_sides(shapes: Mapping[str, list[int]], targets: Sequence[str] | None) -> int:
    """Return the sum of the sides of the matrices that an adapter changes."""
    matrices = [(name.split(".")[-2:][0], each) for name, each in shapes.items() if len(each) == 2]
    return sum(
        sum(shape)
        for layer, shape in matrices
        if (layer in targets if targets else layer not in _NOT_ADAPTED)
    )
