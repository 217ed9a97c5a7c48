"""Stages that cost money and would be recomputed only because a default changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from flows.runs.pinned_stages import arm_keys, pin_changed_stages
from ratchet.parameters.agents import DEFAULT_AGENT
from ratchet.parameters.hyper_parameters import HyperParameters, set_path
from ratchet.parameters.identity import DefaultChange, earlier_defaults
from ratchet.parameters.reading.deep_merge import expand_paths, has_path
from tasks.stages.sequence import StoredStageLayout, flatten_steps
from tasks.text.files import stage_usage
from tasks.text.keys import TextArmKeys

if TYPE_CHECKING:
    from flows.runs.references import Fork
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.closure import KnownCode
    from ratchet.store.manifest import Manifest
    from ratchet.store.stage_index import StageIndex
    from ratchet.store.store import StageStore
    from ratchet.tracking.manifest import StageRecord
    from tasks.stages.families import AnyKeys

NamedValues = Mapping[str, Mapping[str, Any]]
"""Values that a user has named, by arm, nested as in a file."""


class _Experiment(Protocol):
    """The attributes that are read of a resolved experiment."""

    @property
    def settings(self) -> ExperimentSettings: ...
    @property
    def store(self) -> StageStore: ...
    @property
    def index(self) -> StageIndex: ...
    @property
    def keys(self) -> Sequence[AnyKeys]: ...
    @property
    def code(self) -> KnownCode: ...
    @property
    def fork(self) -> Fork | None: ...
    @property
    def records(self) -> Sequence[StageRecord]: ...


@dataclass(frozen=True)
class OldDefaults:
    """Stored stages of an arm that would be reused with earlier defaults.

    Attributes
    ----------
    changes
        The changed default of each parameter that the user has not named, by dotted path.
    num_stages, num_calls
        Numbers of stages that cost money, and of their calls.
    """

    changes: Mapping[str, DefaultChange]
    num_stages: int
    num_calls: int

    def __str__(self) -> str:
        default = f"agents.{DEFAULT_AGENT}."
        listed_changes = {
            path: change
            for path, change in self.changes.items()
            if path.startswith(default)
            or default + path.split(".", 2)[-1] not in self.changes  # agents follow the default
        }
        changes = "; ".join(
            f"the default of {path} changed from {c.old!r} to {c.new!r} in {c.version}"
            for path, c in listed_changes.items()
        )
        values = " ".join(f"{path}={c.old!r}" for path, c in listed_changes.items())
        return (
            f"{changes}: set {values} to keep {self.num_stages} stored stages that cost money"
            f" ({self.num_calls:,} calls), or pass --recompute-paid"
            " (settings.paid_code_changes=recompute)."
        )


def stages_with_old_defaults(experiment: _Experiment, named: NamedValues) -> Iterator[OldDefaults]:
    """Find the stages that cost money and are stored with earlier defaults only, by arm.

    Stages computed with other code count. A value that the user has named is not a default.
    """
    for keys in experiment.keys:
        billed = {name for name, kind in keys.kinds.items() if kind.is_billed}
        if not isinstance(keys, TextArmKeys) or not experiment.index.names & billed:
            continue
        for defaults in earlier_defaults(keys.hyper_params):
            values = named.get(keys.arm, {})
            changes = {p: change for p, change in defaults.items() if not _is_named(values, p)}
            stored = _stored_with(changes, keys, experiment) if changes else []
            if stored:
                usages = [stage_usage(experiment.store, manifest) for manifest in stored]
                calls = sum(usage.total.calls for usage in usages if usage is not None)
                yield OldDefaults(changes, len(stored), calls)
                break


def _stored_with(
    changes: Mapping[str, DefaultChange], keys: TextArmKeys, experiment: _Experiment
) -> list[Manifest]:
    """Return stored stages that cost money with earlier defaults, and are missing otherwise."""
    current = _paid_stages(experiment, keys.copy())
    missing = {position for position, manifest in current if manifest is None}
    if not missing:
        return []
    data = keys.hyper_params.to_dict()
    for path, change in changes.items():
        set_path(data, path, change.old)
    arms = {keys.arm: HyperParameters.from_dict(data)}
    earlier = experiment.fork, experiment.records
    (older,) = arm_keys(arms, experiment.settings, experiment.store, *earlier, experiment.code)
    paid = _paid_stages(experiment, older)
    return [each for position, each in paid if each is not None and position in missing]


def _paid_stages(
    experiment: _Experiment, keys: AnyKeys
) -> Iterator[tuple[tuple[str, int, str], Manifest | None]]:
    """Iterate over an arm's stages that cost money: position, and the stage if it is stored.

    Stages that are stored with other code count, and are pinned in the keys.
    """
    store, settings = experiment.store, experiment.settings
    pin_changed_stages(store, keys, settings, experiment.index)
    for call in flatten_steps(keys.stages(StoredStageLayout(store, settings))):
        if call.kind.is_billed:
            yield (call.stage, call.iteration, call.detail), store.peek(call.key)


def _is_named(named: Mapping[str, Any], path: str) -> bool:
    """Return whether nested values, or a phase's changes, contain a path or its agent's default."""
    section, *names = path.split(".")
    layers = [named, *_changes_of_phases(named.get("phases", ()))]
    paths = [path]
    if section == "agents":
        paths.append(".".join([section, DEFAULT_AGENT, *names[1:]]))
    return any(has_path(layer, each) for layer in layers for each in paths)


def _changes_of_phases(phases: object) -> Iterator[Mapping[str, Any]]:
    """Iterate over the nested changes of phases, which are a list, or a mapping by name."""
    if not isinstance(phases, Mapping | list | tuple):
        return
    for phase in phases.values() if isinstance(phases, Mapping) else phases:
        changes = phase.get("changes") if isinstance(phase, Mapping) else None
        if isinstance(changes, Mapping):
            yield expand_paths(changes, "changes")
