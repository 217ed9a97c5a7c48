"""``ResolvedExperiment``: all that is known of an experiment before it runs, worked out once.

Made at the border, of whatever the user gave: a file, parameters, a run to go on with, the plain
parameters of a Prefect flow. Everything behind the border takes it as it is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.runs.forks import Fork
from flows.runs.pinning import arm_keys
from ratchet.errors import ParameterError
from ratchet.experiment_files.earlier_runs import with_base_run
from ratchet.experiment_files.loaded_agents import with_loaded_agents
from ratchet.experiment_files.loading import load_experiment
from ratchet.parameters.changes import expand_paths, merge_changes
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.keys import canonical_json
from ratchet.store.store import StageStore
from ratchet.tracking.manifest import MAIN_ARM, StageRecord
from ratchet.tracking.run_folder import RunFolder, find_run
from trainers.registry import TRAINERS

if TYPE_CHECKING:
    from tasks.stages.families import AnyKeys

Arms = dict[str, HyperParameters]
ArmChanges = Mapping[str, HyperParameters | Mapping[str, Any]]


@dataclass(frozen=True)
class ResolvedExperiment:
    """An experiment as it runs.

    Attributes
    ----------
    arms
        The complete parameters of every arm by name, the main one first.
    settings
        Where and how it runs: with absolute paths, and the run's id.
    keep
        Whether the run's finished stages are kept even if their code has changed.
    records
        Those stages; none unless ``keep``.
    fork
        What the run shares with its parent, if it is a fork.
    """

    name: str
    arms: Arms
    settings: ExperimentSettings
    keep: bool = False
    records: Sequence[StageRecord] = ()
    fork: Fork | None = None

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self.settings.run_id)

    @property
    def run_path(self) -> Path:
        """The run's folder, which may not be there yet."""
        return Path(self.settings.runs) / self.run_id

    @cached_property
    def store(self) -> StageStore:
        """Where the stages lie."""
        return StageStore(self.settings.store_url, lease_seconds=self.settings.lease_seconds)

    @cached_property
    def keys(self) -> list[AnyKeys]:
        """Each arm's stages, with those that are kept pinned; for progress, plan and run alike."""
        return arm_keys(self.arms, self.settings, self.store, self.fork, self.records)

    def with_settings(self, **changes: object) -> ResolvedExperiment:
        """Return the same experiment with other settings."""
        return replace(self, settings=self.settings.model_copy(update=changes))

    def flow_parameters(self) -> dict[str, Any]:
        """Return the parameters of the Prefect flow: plain data from which it is made again."""
        arms = {arm: params.to_dict() for arm, params in self.arms.items()}
        return {
            "hyper_params": arms.pop(MAIN_ARM),
            "settings": self.settings.to_dict(),
            "arms": arms,
            "name": self.name,
            "keep": self.keep,
        }


def resolve(
    hyper_params: HyperParameters | Mapping[str, Any],
    settings: ExperimentSettings | None = None,
    arms: ArmChanges | None = None,
    *,
    name: str = "experiment",
    keep: bool = False,
) -> ResolvedExperiment:
    """Resolve parameters as :func:`flows.run_experiment` takes them.

    ``keep``: whether to keep what the run ``settings.run_id`` has finished with other code. Raises
    ParameterError if parameters are wrong, RunNotFoundError if a run that they build on is not
    there.
    """
    chosen = absolute_settings(settings or ExperimentSettings())
    if not isinstance(hyper_params, HyperParameters):
        data = with_base_run(hyper_params, chosen.runs)
        hyper_params = HyperParameters.from_dict(data, chosen.base_dir)
    complete = with_earlier_agents(read_arms(hyper_params, arms, chosen.base_dir), chosen)
    return resolve_arms(complete, chosen, name=name, keep=keep)


def resolve_arms(
    arms: Arms,
    settings: ExperimentSettings,
    *,
    name: str,
    keep: bool = False,
    origin: Sequence[str] = (),
) -> ResolvedExperiment:
    """Resolve an experiment of which all arms are complete, the main one among them.

    If the settings have no run's id, it is made of the rest: ``origin`` is what else tells the run
    apart, such as the run that it was forked from. ``name`` and ``keep`` as for :func:`resolve`.
    """
    chosen = absolute_settings(settings)
    run_id = chosen.run_id or stable_run_id(name, arms, *origin)
    chosen = chosen.model_copy(update={"run_id": run_id})
    main_first = {MAIN_ARM: arms[MAIN_ARM], **arms}
    found = ResolvedExperiment(name, main_first, chosen, keep)
    begun = keep and (found.run_path / "manifest.json").exists()
    records = RunFolder(found.run_path).manifest.stages if begun else ()
    return replace(found, records=records, fork=Fork.read(found.run_path))


def resolve_file(
    path: str, overrides: Sequence[str] = (), *, new: bool = False
) -> ResolvedExperiment:
    """Resolve an experiment file with overrides; with ``new`` as a new run if there is one already.

    Path and overrides are as :func:`ratchet.experiment_files.loading.load_experiment` takes them.
    Raises ParameterError if something in the file is wrong.
    """
    file = load_experiment(path, overrides, {"trainer": TRAINERS})
    arms = {MAIN_ARM: file.hyper_params, **file.arms}
    found = resolve_arms(arms, file.settings, name=file.name)
    if not new:
        return found
    return replace(found, fork=None).with_settings(run_id=_unused(found.run_path))


def resolve_run(run: str, settings: ExperimentSettings | None, runs: str) -> ResolvedExperiment:
    """Resolve a run that is to go on as it was started, keeping what it has finished.

    ``run`` is the run's id, its beginning, or its folder; ``settings`` are others than it was
    started with, ``runs`` the folder of all runs. Raises RunNotFoundError if there is no such run.
    """
    folder = find_run(runs, run)
    manifest = folder.manifest
    chosen = settings or ExperimentSettings.from_dict(manifest.settings)
    place = {"run_id": folder.run_id, "runs": str(folder.path.resolve().parent)}
    chosen = absolute_settings(chosen.model_copy(update=place))
    arms = {
        arm: HyperParameters.from_dict(data, chosen.base_dir) for arm, data in manifest.arms.items()
    }
    arms = with_earlier_agents(arms, chosen)
    return resolve_arms(arms, chosen, name=manifest.name, keep=True)


def resolve_parameters(
    hyper_params: dict[str, Any],
    settings: dict[str, Any] | None,
    arms: dict[str, dict[str, Any]] | None,
    *,
    name: str,
    keep: bool,
) -> ResolvedExperiment:
    """Resolve the plain parameters of a flow run: all that one has which Prefect has started."""
    chosen = ExperimentSettings.from_dict(settings or {})
    main = HyperParameters.from_dict(hyper_params, chosen.base_dir)
    return resolve(main, chosen, arms, name=name, keep=keep)


HANDED_OVER: ContextVar[ResolvedExperiment | None] = ContextVar("experiment", default=None)
"""The experiment as whoever calls the flow in this process has resolved it."""


def read_arms(
    hyper_params: HyperParameters, arms: ArmChanges | None, base_dir: str | None = None
) -> Arms:
    """Make the parameters of all arms, the main one first.

    ``arms`` are further ones by name: whole parameters, or changes to the main arm's, nested or
    dotted. Paths of the user's files start from ``base_dir``. Raises ParameterError if an arm is
    named like the main one, or its changes don't fit.
    """
    found = {MAIN_ARM: hyper_params}
    complete = hyper_params.to_dict().keys() - {"phases"}  # left out where there are none
    for name, changes in (arms or {}).items():
        if name == MAIN_ARM:
            raise ParameterError(f"arms.{name}: this name is the main arm's. Choose another name.")
        if isinstance(changes, HyperParameters):
            found[name] = changes
            continue
        try:
            if changes.keys() >= complete:  # nothing of the main arm's is left under it
                found[name] = HyperParameters.from_dict(changes, base_dir)
                continue
            data = merge_changes(hyper_params.to_dict(), expand_paths(changes, f"arms.{name}"))
            found[name] = HyperParameters.from_dict(data, base_dir)
        except ParameterError as error:
            raise ParameterError(f"arms.{name}: {error}") from error
    return found


def stable_run_id(name: str, arms: Arms, *origin: str) -> str:
    """Return the id of a run: its name and eight digits that follow from the parameters.

    ``origin`` is what else tells it apart, e.g. the run it was forked from.
    """
    plain = {arm: params.to_dict() for arm, params in arms.items()}
    digest = hashlib.sha256(canonical_json([plain, list(origin)])).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name).strip('.-') or 'run'}-{digest[:8]}"


def absolute_settings(settings: ExperimentSettings) -> ExperimentSettings:
    """Make paths absolute, so that a worker in another folder finds the same places."""
    changes: dict[str, str] = {
        name: str(Path(getattr(settings, name)).expanduser().resolve())
        for name in ("home", "runs", "base_dir")
        if getattr(settings, name) is not None
    }
    if settings.store is not None and "://" not in settings.store:
        changes["store"] = str(Path(settings.store).expanduser().resolve())
    return settings.model_copy(update=changes)


def with_earlier_agents(arms: Arms, settings: ExperimentSettings) -> Arms:
    """Give agents that are to be loaded the parameters of the runs they come from, in all arms."""
    return {arm: with_loaded_agents(params, settings) for arm, params in arms.items()}


def _unused(path: Path) -> str:
    """Return the first of a run's id, and it with -2, -3 … behind, that is no run yet."""
    number = 2
    while path.with_name(f"{path.name}-{number}").exists():
        number += 1
    return f"{path.name}-{number}" if path.exists() else path.name
