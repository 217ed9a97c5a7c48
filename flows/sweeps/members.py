"""The members of a sweep: whole experiments whose ids are those that ``ratchet run`` gives them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from flows.runs.resolving import ArmChanges, ResolvedExperiment, absolute_settings, resolve
from flows.sweeps.grid import describe_point, grid_points
from ratchet.errors import RatchetError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.reading import data_parameters, without_paths
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.keys import canonical_json
from trainers.combinations import check_combination


@dataclass(frozen=True)
class SweepMember:
    """One experiment of a sweep, and what it changes."""

    changes: dict[str, Any]
    experiment: ResolvedExperiment

    @property
    def run_id(self) -> str:
        """The id of its run."""
        return self.experiment.run_id

    @property
    def label(self) -> str:
        """What it changes, as on the command line."""
        return describe_point(self.changes) or self.run_id


@dataclass(frozen=True)
class ResolvedSweep:
    """A sweep as it runs.

    Attributes
    ----------
    sweep_id
        Its id, or the name that the user gave it.
    grid
        Dotted path → values.
    settings, base, arms
        What all members have in common; the arms as changes.
    """

    sweep_id: str
    name: str
    grid: dict[str, list[Any]]
    members: tuple[SweepMember, ...]
    settings: ExperimentSettings
    base: HyperParameters
    arms: ArmChanges

    def flow_parameters(self) -> dict[str, Any]:
        """Return the parameters of the Prefect flow: plain data from which it is made again."""
        arms = {
            name: arm.to_dict() if isinstance(arm, HyperParameters) else dict(arm)
            for name, arm in self.arms.items()
        }
        return {
            "hyper_params": self.base.to_dict(),
            "grid": self.grid,
            "settings": self.settings.to_dict(),
            "arms": arms,
            "name": self.name,
            "sweep_name": self.sweep_id,
        }


HANDED_OVER_SWEEP: ContextVar[ResolvedSweep | None] = ContextVar("resolved_sweep", default=None)
"""The sweep as whoever calls the flow has resolved it."""


def resolve_sweep(
    base: HyperParameters,
    grid: Mapping[str, Sequence[Any]],
    settings: ExperimentSettings | None,
    arms: ArmChanges | None,
    *,
    name: str,
    sweep_name: str | None = None,
) -> ResolvedSweep:
    """Resolve a sweep and its members; parameters and errors as :func:`sweep_members`."""
    chosen = absolute_settings(settings or ExperimentSettings())
    members = sweep_members(base, grid_points(grid), arms, name=name, settings=chosen)
    ident = sweep_name or sweep_id(name, members)
    ours = {"parent_run_id": ident, "tags": {**chosen.tags, "sweep": ident}}
    named = tuple(
        replace(member, experiment=member.experiment.with_settings(**ours)) for member in members
    )
    values = {path: list(each) for path, each in grid.items()}
    return ResolvedSweep(ident, name, values, named, chosen, base, arms or {})


def sweep_members(
    base: HyperParameters,
    points: Sequence[Mapping[str, Any]],
    arms: ArmChanges | None,
    *,
    name: str,
    settings: ExperimentSettings,
    check: Callable[[HyperParameters, str | None], None] = check_combination,
) -> list[SweepMember]:
    """Make the experiments of a grid's points; one that ``check`` refuses is refused here.

    ``base`` is what all have in common, ``arms`` further experiments of each member's run, as
    changes. Of the settings ``base_dir`` and where earlier runs lie are
    read. Raises ParameterError if a combination is refused, saying which.
    """
    members = []
    for changes in map(dict, points):
        try:
            own = settings.model_copy(update={"run_id": None})
            experiment = resolve(base.replace(changes, settings.base_dir), own, arms, name=name)
            for params in experiment.arms.values():
                check(params, settings.base_dir)
        except RatchetError as error:
            point = describe_point(changes)
            raise type(error)(f"sweep: {point}:\n{error}" if point else str(error)) from error
        members.append(SweepMember(changes, experiment))
    return members


def changes_of_data(members: Sequence[SweepMember]) -> list[str]:
    """List the swept parameters that change what data a member is trained and tested on.

    Reads parameters only, and no code: members of one sweep are of one version.
    """
    found = []
    for path in members[0].changes if members else ():
        data: dict[bytes, set[bytes]] = {}
        for member in members:
            others = {name: value for name, value in member.changes.items() if name != path}
            arms = member.experiment.arms.values()
            read = sorted(canonical_json(without_paths(data_parameters(arm))) for arm in arms)
            data.setdefault(canonical_json(others), set()).add(b" ".join(read))
        if any(len(each) > 1 for each in data.values()):
            found.append(path)
    return found


def sweep_id(name: str, members: Sequence[SweepMember]) -> str:
    """Return the id of a sweep: the same for the same members, in whatever order."""
    digest = hashlib.sha256(canonical_json(sorted(member.run_id for member in members)))
    stem = members[0].run_id.rpartition("-")[0] if members else name
    return f"{stem}-sweep-{digest.hexdigest()[:8]}"
