"""Members of a sweep: experiments with the same run ids as in ``ratchet run``."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.runs.resolve import ArmChanges, ResolvedExperiment, absolute_settings, resolve
from flows.sweeps.points import (
    corner_points,
    describe_point,
    read_grid,
    sweep_points,
    with_assignments,
)
from flows.sweeps.preregistration import applicable_preregistration
from ratchet.errors import ParameterError, RatchetError
from ratchet.experiment_files.loading import ExperimentFile, load_experiment, named_values
from ratchet.lazy import require_packages
from ratchet.parameters.agents import DEFAULT_AGENT
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.identity import identifying_values, without_defaults
from ratchet.parameters.key_inputs import data_parameters, without_paths
from ratchet.parameters.reading.deep_merge import expand_paths
from ratchet.parameters.settings import ExperimentSettings
from ratchet.parameters.sweeps import GridSweep, OptunaSweep, SweepSpec, read_sweep_spec
from ratchet.protocols.registry import playing_agents
from ratchet.store.keys import canonical_json
from ratchet.tracking.environment import command_line
from ratchet.tracking.manifest import MAIN_ARM
from ratchet.tracking.preregistration import Preregistration
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.sweep_folder import (
    SweepMemberRecord,
    SweepRecord,
    read_own_sweep,
    read_sweep,
)
from trainers.compatibility import check_combination
from trainers.registry import TRAINERS

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SweepMember:
    """One experiment of a sweep, with its changes."""

    changes: dict[str, Any]
    experiment: ResolvedExperiment

    @property
    def run_id(self) -> str:
        """The id of its run."""
        return self.experiment.run_id

    @property
    def label(self) -> str:
        """Its changes, as on the command line."""
        return describe_point(self.changes) or self.run_id


@dataclass(frozen=True)
class ResolvedSweep:
    """A sweep with its members.

    Attributes
    ----------
    sweep_id
        Its id, or the name given by the user.
    spec
        Its specification.
    members
        Members that are known in advance: none if Optuna chooses them.
    settings, base, arms
        Common parts of all members; the arms as changes.
    retry_failed
        Whether to run only failed members.
    preregistered
        What the study compares, to record before the first member starts.
    """

    sweep_id: str
    name: str
    spec: SweepSpec
    members: tuple[SweepMember, ...]
    settings: ExperimentSettings
    base: HyperParameters
    arms: ArmChanges
    retry_failed: bool = False
    preregistered: Preregistration | None = None

    @property
    def grid(self) -> dict[str, list[Any]]:
        """Values by dotted path; empty unless the sweep is a grid."""
        return self.spec.parameters if isinstance(self.spec, GridSweep) else {}

    @property
    def num_members(self) -> int:
        """Number of members."""
        if isinstance(self.spec, OptunaSweep):
            return self.spec.num_trials
        return len(self.members)

    @property
    def folder(self) -> Path:
        """Folder of its record, its page and the logs of its processes."""
        return Path(self.settings.runs) / self.sweep_id

    def member(self, changes: Mapping[str, Any]) -> SweepMember:
        """Return the member with these changes."""
        (member,) = sweep_members(
            self.base, [changes], self.arms, name=self.name, settings=self.settings
        )
        return self.adopt(member)

    def known_record(self) -> SweepRecord:
        """Return the stored record, which includes members chosen during the sweep."""
        return read_sweep(self.settings.runs, self.sweep_id) or self.record(self.members)

    def adopt(self, member: SweepMember) -> SweepMember:
        """Return a member whose run is tagged with this sweep."""
        tags = {**self.settings.tags, "sweep": self.sweep_id}
        tagged = member.experiment.with_settings(parent_run_id=self.sweep_id, tags=tags)
        return replace(member, experiment=tagged)

    def record(self, members: Sequence[SweepMember]) -> SweepRecord:
        """Return the content of ``sweep.json`` for these members."""
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
        """Return the parameters of the Prefect flow: plain data that reproduce the sweep."""
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
    """Return whether a member has run and failed."""
    path = member.experiment.run_path
    return (path / "manifest.json").exists() and RunFolder(path).status == "failed"


RESOLVED_SWEEP: ContextVar[ResolvedSweep | None] = ContextVar("resolved_sweep", default=None)
"""The sweep resolved by the flow's caller."""


def read_sweep_file(
    file: str, assignments: Sequence[str], overrides: Sequence[str] = ()
) -> tuple[ExperimentFile, SweepSpec, ExperimentSettings]:
    """Read a sweep's experiment file, its specification, and the settings.

    Parameters
    ----------
    assignments
        ``a.b=VALUES`` as in :func:`read_grid`; they override the file's section ``sweep``.
    overrides
        Further overrides for all members, as on the command line.
    """
    grid, single = read_grid(assignments)
    common = [*single, *overrides]
    experiment = load_experiment(file, common, {"trainer": TRAINERS})
    if not assignments and experiment.sweep is None:
        raise ParameterError(
            f"{file}: no parameter varies: expected a section `sweep` or values, e.g. seed=0..4."
        )
    fixed = [override.partition("=")[0].strip().lstrip("+~") for override in common]
    spec = with_assignments(experiment.sweep, grid, fixed)
    settings = absolute_settings(experiment.settings)
    if settings.run_id is not None:
        raise ParameterError(
            f"settings.run_id: got {settings.run_id!r}, but each member of a sweep has its own id."
            " Remove it."
        )
    return experiment, spec, settings


def resolve_sweep(
    base: HyperParameters,
    grid: Mapping[str, Any] | SweepSpec,
    settings: ExperimentSettings | None,
    arms: ArmChanges | None,
    *,
    name: str,
    sweep_name: str | None = None,
    preregistered: Preregistration | None = None,
) -> ResolvedSweep:
    """Resolve a sweep and its members; parameters and errors as :func:`sweep_members`.

    ``grid``: values by dotted path, or a specification as plain data or as an object. Raises
    ParameterError if the members have only some of the ``preregistered`` seeds, or further ones, or
    if no arm varies with a parameter.
    """
    chosen = absolute_settings(settings or ExperimentSettings())
    spec = _as_spec(grid, chosen.base_dir)
    points = corner_points(spec.parameters) if isinstance(spec, OptunaSweep) else sweep_points(spec)
    members = sweep_members(base, points, arms, name=name, settings=chosen)
    check_variation(points, [member.experiment for member in members])
    if isinstance(spec, OptunaSweep):
        require_packages(["optuna"], "a sweep of kind optuna")
        ident = sweep_name or _study_id(members, spec, base, arms or {})
        members = []  # the bounds are valid combinations; Optuna chooses the actual members
    else:
        ident = sweep_name or sweep_id(name, members)
        members = _with_recorded_ids(members, read_own_sweep(Path(chosen.runs) / ident))
    resolved = ResolvedSweep(ident, name, spec, (), chosen, base, arms or {})
    seeds = {member.experiment.arms[MAIN_ARM].seed for member in members}
    return replace(
        resolved,
        members=tuple(resolved.adopt(member) for member in members),
        preregistered=applicable_preregistration(preregistered, seeds),
    )


def resolve_file_sweep(
    file: ExperimentFile, spec: SweepSpec, sweep_name: str | None
) -> ResolvedSweep:
    """Resolve a sweep of an experiment file; see :func:`resolve_sweep`."""
    return resolve_sweep(
        file.hyper_params,
        spec,
        file.settings,
        file.arm_changes,
        name=file.name,
        sweep_name=sweep_name,
        preregistered=file.preregistered,
    )


def _as_spec(grid: Mapping[str, Any] | SweepSpec, base_dir: str | None) -> SweepSpec:
    if not isinstance(grid, Mapping):
        return grid
    if isinstance(grid.get("kind"), str):
        return read_sweep_spec(grid, base_dir)
    for path, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ParameterError(f"sweep: {path}: got {values!r}, expected a list of values.")
    return GridSweep(parameters={path: list(values) for path, values in grid.items()})


def _study_id(
    members: Sequence[SweepMember], spec: OptunaSweep, base: HyperParameters, arms: ArmChanges
) -> str:
    """Return the id of a sweep whose members are unknown; independent of their number."""
    plain = {
        name: identifying_values(arm) if isinstance(arm, HyperParameters) else arm
        for name, arm in arms.items()
    }
    study = {**without_defaults(spec), "num_trials": None}
    content = canonical_json([identifying_values(base), plain, study])
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
    """Return the experiments of a sweep's points, each validated by ``check``.

    ``base`` has the common parameters, ``arms`` the further arms of each member's run, as changes.
    Only ``base_dir`` and the folders of earlier runs are read from the settings. Raises
    ParameterError with the combination that is refused.
    """
    members = []
    for changes in map(dict, points):
        try:
            new = settings.model_copy(update={"run_id": None})
            named = named_values(expand_paths(changes, "sweep"), arms or {})
            params = base.replace(changes, settings.base_dir)
            experiment = resolve(params, new, arms, name=name, named=named)
            for params in experiment.arms.values():
                check(params, settings.base_dir)
        except RatchetError as error:
            point = describe_point(changes)
            raise type(error)(f"sweep: {point}:\n{error}" if point else str(error)) from error
        members.append(SweepMember(changes, experiment))
    return members


def _with_recorded_ids(members: list[SweepMember], record: SweepRecord | None) -> list[SweepMember]:
    """Keep the ids with which an earlier version recorded a sweep's members.

    Members that have started have them already, and show that the sweep is the same.
    """
    if record is None:
        return members
    recorded = {canonical_json(each.changes): each.run_id for each in record.members}
    ids = [recorded.get(canonical_json(each.changes), each.run_id) for each in members]
    if not any(
        member.run_id == run_id and (member.experiment.run_path / "manifest.json").exists()
        for member, run_id in zip(members, ids, strict=True)
    ):
        return members
    return [
        replace(member, experiment=member.experiment.with_settings(run_id=run_id))
        for member, run_id in zip(members, ids, strict=True)
    ]


def changes_of_data(members: Sequence[SweepMember]) -> list[str]:
    """List the varying parameters that change the training or test data.

    Compares parameters only, not code: all members of a sweep use one version.
    """
    paths = []
    for path in members[0].changes if members else ():
        data: dict[bytes, set[bytes]] = {}
        for member in members:
            others = {name: value for name, value in member.changes.items() if name != path}
            arms = member.experiment.arms.values()
            read = sorted(canonical_json(without_paths(data_parameters(arm))) for arm in arms)
            data.setdefault(canonical_json(others), set()).add(b" ".join(read))
        if any(len(each) > 1 for each in data.values()):
            paths.append(path)
    return paths


def sweep_id(name: str, members: Sequence[SweepMember]) -> str:
    """Return the id of a sweep; independent of the order of its members."""
    digest = hashlib.sha256(canonical_json(sorted(member.run_id for member in members)))
    stem = members[0].run_id.rpartition("-")[0] if members else name
    return f"{stem}-sweep-{digest.hexdigest()[:8]}"


def check_variation(
    points: Sequence[Mapping[str, Any]], experiments: Sequence[ResolvedExperiment]
) -> None:
    """Check each varied parameter of a sweep, given each member's changes and experiment.

    Raises ParameterError if no arm varies with it; logs a warning that names the arms that do not.
    """
    for path in points[0] if points else ():
        first = _others(points[0], path)
        alike = [k for k, each in enumerate(points) if _others(each, path) == first]
        if len(alike) < 2:
            continue  # the other parameters vary with it
        arms = experiments[0].arms
        constant = [arm for arm in arms if _is_constant([experiments[k] for k in alike], arm)]
        if len(constant) == len(arms):
            values = ", ".join(str(points[k][path]) for k in alike[:3])
            raise ParameterError(
                f"sweep: {path}: got {values}, but no arm varies with it, since all agents or arms"
                f" set it themselves. Vary {_specific(path)} instead, or remove it there."
            )
        if constant:
            logger.warning(
                "sweep: %s does not vary in the arms %s, which set it themselves. Remove it there,"
                " with ~arms.NAME.%s, or drop these arms with ~arms.NAME.",
                *(path, ", ".join(constant), path),
            )


def _specific(path: str) -> str:
    """Return the parameters that take precedence over a path."""
    prefix = f"agents.{DEFAULT_AGENT}."
    return f"agents.NAME.{path.removeprefix(prefix)}" if path.startswith(prefix) else "theirs"


def _others(point: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    return {name: value for name, value in point.items() if name != path}


def _is_constant(experiments: Sequence[ResolvedExperiment], arm: str) -> bool:
    """Return whether an arm's parameters in use are equal in all experiments."""
    first, *others = (_used(each, arm) for each in experiments)
    return all(each == first for each in others)


def _used(experiment: ResolvedExperiment, arm: str) -> bytes:
    """Return an arm's parameters, with those of its protocol's agents instead of the defaults."""
    params, base_dir = experiment.arms[arm], experiment.settings.base_dir
    agents = playing_agents(params, None if base_dir is None else Path(base_dir))
    named = {name: each.to_dict() for name, each in agents.items()}
    return canonical_json({**params.to_dict(), "agents": named})
