"""The members of a sweep: whole experiments whose ids are those that ``ratchet run`` gives them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.runs.resolving import ArmChanges, ResolvedExperiment, absolute_settings, resolve
from flows.sweeps.grid import describe_point
from flows.sweeps.points import corner_points, sweep_points
from flows.sweeps.study import described_study
from ratchet.errors import ParameterError, RatchetError
from ratchet.lazy import require_packages
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.reading import data_parameters, without_paths
from ratchet.parameters.settings import ExperimentSettings
from ratchet.parameters.sweeps import GridSweep, OptunaSweep, SweepSpec, read_sweep_spec
from ratchet.store.keys import canonical_json
from ratchet.tracking.invocation import command_line
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.sweep_folder import SweepMemberRecord, SweepRecord, read_sweep
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
    spec
        Which members it has.
    members
        Those that are known beforehand: none of a sweep whose members Optuna chooses.
    settings, base, arms
        What all members have in common; the arms as changes.
    retry_failed
        Whether only those are run that have failed.
    """

    sweep_id: str
    name: str
    spec: SweepSpec
    members: tuple[SweepMember, ...]
    settings: ExperimentSettings
    base: HyperParameters
    arms: ArmChanges
    retry_failed: bool = False

    @property
    def grid(self) -> dict[str, list[Any]]:
        """Dotted path → values; nothing if it is no grid."""
        return self.spec.parameters if isinstance(self.spec, GridSweep) else {}

    @property
    def num_members(self) -> int:
        """How many members it is to have."""
        if isinstance(self.spec, OptunaSweep):
            return self.spec.num_trials
        return len(self.members)

    @property
    def folder(self) -> Path:
        """Where its record, its page and the output of its processes lie."""
        return Path(self.settings.runs) / self.sweep_id

    def member(self, changes: Mapping[str, Any]) -> SweepMember:
        """Make the member that changes this."""
        (made,) = sweep_members(
            self.base, [changes], self.arms, name=self.name, settings=self.settings
        )
        return self.adopt(made)

    def known_record(self) -> SweepRecord:
        """Return what is recorded of it: the members that were chosen on the way too."""
        return read_sweep(self.settings.runs, self.sweep_id) or self.record(self.members)

    def adopt(self, member: SweepMember) -> SweepMember:
        """Return a member that knows which sweep it belongs to."""
        tags = {**self.settings.tags, "sweep": self.sweep_id}
        ours = member.experiment.with_settings(parent_run_id=self.sweep_id, tags=tags)
        return replace(member, experiment=ours)

    def record(self, members: Sequence[SweepMember]) -> SweepRecord:
        """Return what ``sweep.json`` holds of it with these members."""
        is_grid = isinstance(self.spec, GridSweep)
        return SweepRecord(
            sweep_id=self.sweep_id,
            name=self.name,
            grid=self.grid,
            spec={} if is_grid else self.spec.to_dict(),
            members=[SweepMemberRecord(run_id=m.run_id, changes=m.changes) for m in members],
            command=command_line(),
        )

    def flow_parameters(self) -> dict[str, Any]:
        """Return the parameters of the Prefect flow: plain data from which it is made again."""
        arms = {
            name: arm.to_dict() if isinstance(arm, HyperParameters) else dict(arm)
            for name, arm in self.arms.items()
        }
        return {
            "hyper_params": self.base.to_dict(),
            "grid": self.grid or self.spec.to_dict(),
            "settings": self.settings.to_dict(),
            "arms": arms,
            "name": self.name,
            "sweep_name": self.sweep_id,
        }


def has_failed(member: SweepMember) -> bool:
    """Return whether a member was run, and has failed."""
    path = member.experiment.run_path
    return (path / "manifest.json").exists() and RunFolder(path).status == "failed"


HANDED_OVER_SWEEP: ContextVar[ResolvedSweep | None] = ContextVar("resolved_sweep", default=None)
"""The sweep as whoever calls the flow has resolved it."""


def resolve_sweep(
    base: HyperParameters,
    grid: Mapping[str, Any] | SweepSpec,
    settings: ExperimentSettings | None,
    arms: ArmChanges | None,
    *,
    name: str,
    sweep_name: str | None = None,
) -> ResolvedSweep:
    """Resolve a sweep and its members; parameters and errors as :func:`sweep_members`.

    ``grid`` is what varies: dotted path → values, or a specification, plain or read.
    """
    chosen = absolute_settings(settings or ExperimentSettings())
    spec = _as_spec(grid)
    points = corner_points(spec.parameters) if isinstance(spec, OptunaSweep) else sweep_points(spec)
    members = sweep_members(base, points, arms, name=name, settings=chosen)
    if isinstance(spec, OptunaSweep):
        require_packages(["optuna"], "a sweep of kind optuna")
        ident = sweep_name or _study_id(members, spec, base, arms or {})
        members = []  # the ends of what may be chosen go together; which are chosen is to be seen
    else:
        ident = sweep_name or sweep_id(name, members)
    found = ResolvedSweep(ident, name, spec, (), chosen, base, arms or {})
    return replace(found, members=tuple(found.adopt(member) for member in members))


def _as_spec(grid: Mapping[str, Any] | SweepSpec) -> SweepSpec:
    if not isinstance(grid, Mapping):
        return grid
    if isinstance(grid.get("kind"), str):
        return read_sweep_spec(grid)
    for path, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ParameterError(f"sweep: {path}: got {values!r}, expected a list of values.")
    return GridSweep(parameters={path: list(values) for path, values in grid.items()})


def _study_id(
    members: Sequence[SweepMember], spec: OptunaSweep, base: HyperParameters, arms: ArmChanges
) -> str:
    """Return the id of a sweep whose members are not known: the same however many it has."""
    plain = {n: a.to_dict() if isinstance(a, HyperParameters) else a for n, a in arms.items()}
    content = canonical_json([base.to_dict(), plain, described_study(spec)])
    stem = members[0].run_id.rpartition("-")[0]
    return f"{stem}-sweep-{hashlib.sha256(content).hexdigest()[:8]}"


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
