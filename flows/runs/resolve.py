"""``ResolvedExperiment``: the complete description of an experiment before it runs.

Resolved once at the border, from an experiment file, parameters, a run to resume, or the plain
parameters of a Prefect flow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from flows.runs.changed_defaults import NamedValues, stages_with_old_defaults
from flows.runs.pinned_stages import ChangedStage, arm_keys, paid_again, pin_changed_stages
from flows.runs.references import Fork
from flows.runs.removed_states import check_states
from ratchet.errors import (
    ChangedCodeError,
    ChangedDefaultError,
    ParameterError,
    RatchetError,
    kind_of,
    shown,
)
from ratchet.experiment_files.base_run import with_base_run, with_loaded_agents
from ratchet.experiment_files.loading import ExperimentFile, load_experiment, named_values
from ratchet.parameters.compatibility.converters import upgrade_parameters
from ratchet.parameters.hyper_parameters import OMITTED_IF_EMPTY, HyperParameters
from ratchet.parameters.identity import parameters_digest
from ratchet.parameters.reading.deep_merge import expand_paths, follow_default, merge_changes
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.closure import KnownCode
from ratchet.store.stage_index import StageIndex
from ratchet.store.store import StageStore
from ratchet.tracking.manifest import MAIN_ARM, StageRecord
from ratchet.tracking.run_folder import RunFolder, find_run
from tasks.language.keys import LanguageArmKeys
from tasks.text.keys import TextArmKeys
from trainers.registry import TRAINERS

if TYPE_CHECKING:
    from tasks.stages.families import AnyKeys

Arms = dict[str, HyperParameters]
ArmChanges = Mapping[str, HyperParameters | Mapping[str, Any]]
Parameters: TypeAlias = HyperParameters | Mapping[str, Any] | str | os.PathLike[str]
"""Parameters of an experiment, or the path of its file."""
_DIGITS = 8


@dataclass(frozen=True)
class ResolvedExperiment:
    """An experiment with complete parameters and settings.

    Attributes
    ----------
    arms
        The complete parameters of every arm by name, the main arm first.
    settings
        Settings with absolute paths and the run's id.
    keep
        Whether the run's finished stages are reused even if their code has changed.
    records
        These stages; empty unless ``keep``.
    fork
        The stages shared with the run's parent, if it is a fork.
    named
        The values known to be set by the user; others may be defaults.
    """

    name: str
    arms: Arms
    settings: ExperimentSettings
    keep: bool = False
    records: Sequence[StageRecord] = ()
    fork: Fork | None = None
    named: NamedValues = field(default_factory=dict, compare=False)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self.settings.run_id)

    @property
    def run_path(self) -> Path:
        """The run's folder, which may not exist yet."""
        return Path(self.settings.runs) / self.run_id

    @cached_property
    def store(self) -> StageStore:
        """The store of the stages."""
        return StageStore(self.settings.store_url, lease_seconds=self.settings.lease_seconds)

    @cached_property
    def index(self) -> StageIndex:
        """The stages in the store when it is first requested."""
        return StageIndex(self.store)

    @cached_property
    def code(self) -> KnownCode:
        """The code that the keys have read."""
        return KnownCode()

    @cached_property
    def keys(self) -> list[AnyKeys]:
        """Each arm's stages, with reused ones pinned; shared by progress, plan and run."""
        earlier = self.fork, self.records
        arms = arm_keys(self.arms, self.settings, self.store, *earlier, self.code)
        if self.settings.paid_code_changes == "keep":
            for keys in arms:
                pin_changed_stages(self.store, keys, self.settings, self.index)
        return arms

    def check_stored_stages(self) -> None:
        """Refuse to recompute stages that cost money only because code or a default changed.

        Or to compute stages from states that were removed. Raises ChangedDefaultError unless
        ``settings.paid_code_changes`` is ``recompute``, ChangedCodeError unless it is set, and
        CheckPointNotFoundError.
        """
        if any(isinstance(keys, LanguageArmKeys) for keys in self.keys):
            check_states(self.store, self.settings, self.keys)
        if self.settings.paid_code_changes == "recompute":
            return
        arms = [keys for keys in self.keys if isinstance(keys, TextArmKeys)]
        if not arms:  # no stage costs money
            return
        stored = stages_with_old_defaults(self, self.named)
        if message := "\n".join(map(str, stored)):
            raise ChangedDefaultError(message)
        if self.settings.paid_code_changes == "keep":
            return
        changed: list[ChangedStage] = []
        for keys in arms:
            changed += pin_changed_stages(self.store, keys, self.settings, self.index)
        if message := paid_again(changed):
            raise ChangedCodeError(message)
        if changed:  # and free, so that they are computed again
            del vars(self)["keys"]

    def with_settings(self, **changes: object) -> ResolvedExperiment:
        """Return the same experiment with other settings."""
        return replace(self, settings=self.settings.model_copy(update=changes))

    def flow_parameters(self) -> dict[str, Any]:
        """Return the Prefect flow's parameters: plain data that resolves to this experiment."""
        arms = {arm: params.to_dict() for arm, params in self.arms.items()}
        return {
            "hyper_params": arms.pop(MAIN_ARM),
            "settings": self.settings.to_dict(),
            "arms": arms,
            "name": self.name,
            "keep": self.keep,
        }


def resolve(
    hyper_params: Parameters,
    settings: ExperimentSettings | None = None,
    arms: ArmChanges | None = None,
    *,
    name: str | None = None,
    keep: bool = False,
    named: NamedValues | None = None,
) -> ResolvedExperiment:
    """Resolve the parameters of :func:`flows.run_experiment`.

    ``keep``: whether to reuse stages of the run ``settings.run_id`` even if code changed.
    ``named``: values that the user has named, if ``hyper_params`` are complete. Raises
    ParameterError if parameters are invalid, RunNotFoundError if a run that they name is missing.
    """
    if isinstance(hyper_params, str | os.PathLike):
        file = load_file(hyper_params, settings)
        arms, settings = {**file.arms, **(arms or {})}, file.settings
        hyper_params, name, named = file.hyper_params, name or file.name, file.named
    chosen = absolute_settings(settings or ExperimentSettings())
    if not isinstance(hyper_params, HyperParameters):
        if not isinstance(hyper_params, Mapping):
            raise ParameterError(
                f"parameters: got {shown(hyper_params)} ({kind_of(hyper_params)}), expected"
                " HyperParameters, a mapping, or the path of an experiment file."
            )
        changes = {k: arm for k, arm in (arms or {}).items() if isinstance(arm, Mapping)}
        named = named_values(expand_paths(hyper_params, "parameters"), changes)
        data = with_base_run(hyper_params, chosen.runs)
        hyper_params = HyperParameters.from_dict(data, chosen.base_dir)
    complete = with_earlier_agents(read_arms(hyper_params, arms, chosen.base_dir), chosen)
    resolved = resolve_arms(complete, chosen, name=name or "experiment", keep=keep)
    return replace(resolved, named=named or {})


def load_file(
    path: str | os.PathLike[str], settings: ExperimentSettings | None = None
) -> ExperimentFile:
    """Load an experiment file; values that were given to ``settings`` replace the file's."""
    file = load_experiment(Path(path), (), {"trainer": TRAINERS})
    overrides = settings.model_dump(include=settings.model_fields_set) if settings else {}
    chosen = ExperimentSettings.from_dict({**file.settings.to_dict(), **overrides})
    return replace(file, settings=chosen)


def resolve_arms(
    arms: Arms,
    settings: ExperimentSettings,
    *,
    name: str,
    keep: bool = False,
    origin: Sequence[str] = (),
) -> ResolvedExperiment:
    """Resolve an experiment with complete arms, including the main arm.

    Without ``settings.run_id``, the id is derived from the other arguments; ``origin`` adds further
    inputs, such as the parent of a fork. ``name`` and ``keep`` as for :func:`resolve`.
    """
    chosen = absolute_settings(settings)
    run_id = chosen.run_id or run_id_for(name, arms, chosen, origin)
    chosen = chosen.model_copy(update={"run_id": run_id})
    main_first = {MAIN_ARM: arms[MAIN_ARM], **arms}
    path = Path(chosen.runs) / run_id
    is_resumed = keep and (path / "manifest.json").exists()
    records = RunFolder(path).manifest.stages if is_resumed else ()
    return ResolvedExperiment(name, main_first, chosen, keep, records, Fork.read(path))


def resolve_file(
    path: str, overrides: Sequence[str] = (), *, new: bool = False
) -> ResolvedExperiment:
    """Resolve an experiment file with overrides; ``new`` requests a new run id.

    Path and overrides as for :func:`ratchet.experiment_files.loading.load_experiment`. Raises
    ParameterError if the file is invalid.
    """
    file = load_experiment(path, overrides, {"trainer": TRAINERS})
    arms = {MAIN_ARM: file.hyper_params, **file.arms}
    experiment = resolve_arms(arms, file.settings, name=file.name)
    experiment = replace(experiment, named=file.named)
    if not new:
        return experiment
    return replace(experiment, fork=None).with_settings(run_id=_unused(experiment.run_path))


def resolve_run(run: str, settings: ExperimentSettings | None, runs: str) -> ResolvedExperiment:
    """Resolve an existing run for resuming, reusing its finished stages.

    ``run`` is the run's id, a prefix of it, or its folder; ``settings`` replace the run's settings;
    ``runs`` is the folder of all runs. Raises RunNotFoundError if the run does not exist.
    """
    folder = find_run(runs, run)
    manifest = folder.manifest
    chosen = settings or ExperimentSettings.from_dict(manifest.settings)
    update = {"run_id": folder.run_id, "runs": str(folder.path.resolve().parent)}
    chosen = absolute_settings(chosen.model_copy(update=update))
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
    """Resolve the plain parameters of a flow run, as started by Prefect."""
    chosen = ExperimentSettings.from_dict(settings or {})
    main = HyperParameters.from_dict(hyper_params, chosen.base_dir)
    return resolve(main, chosen, arms, name=name, keep=keep)


RESOLVED_EXPERIMENT: ContextVar[ResolvedExperiment | None] = ContextVar("experiment", default=None)
"""The experiment as resolved by the flow's caller, if it is in this process."""


def read_arms(
    hyper_params: HyperParameters, arms: ArmChanges | None, base_dir: str | None = None
) -> Arms:
    """Return the parameters of all arms, the main arm first.

    ``arms`` maps names to complete parameters, or to changes of the main arm's, nested or dotted.
    Paths of custom files are relative to ``base_dir``. Raises ParameterError if an arm has the main
    arm's name, or its changes are invalid.
    """
    complete_arms = {MAIN_ARM: hyper_params}
    complete = hyper_params.to_dict().keys() - OMITTED_IF_EMPTY
    for name, changes in (arms or {}).items():
        if name == MAIN_ARM:
            raise ParameterError(f"arms.{name}: the main arm has this name. Choose another name.")
        if isinstance(changes, HyperParameters):
            complete_arms[name] = changes
            continue
        try:
            if changes.keys() >= complete:  # replaces all of the main arm's parameters
                complete_arms[name] = HyperParameters.from_dict(changes, base_dir)
                continue
            data, expanded = hyper_params.to_dict(), expand_paths(changes, f"arms.{name}")
            data = merge_changes(data, follow_default(data, expanded))
            complete_arms[name] = HyperParameters.from_dict(data, base_dir)
        except ParameterError as error:
            raise ParameterError(f"arms.{name}: {error}") from error
    return complete_arms


def absolute_settings(settings: ExperimentSettings) -> ExperimentSettings:
    """Make paths absolute, so that they are valid for workers in other folders."""
    changes: dict[str, str] = {
        name: str(Path(getattr(settings, name)).expanduser().resolve())
        for name in ("home", "runs", "base_dir")
        if getattr(settings, name) is not None
    }
    if settings.store is not None and "://" not in settings.store:
        changes["store"] = str(Path(settings.store).expanduser().resolve())
    return settings.model_copy(update=changes)


def with_earlier_agents(arms: Arms, settings: ExperimentSettings) -> Arms:
    """Set the parameters of loaded agents in all arms from the runs that contain them."""
    return {arm: with_loaded_agents(params, settings) for arm, params in arms.items()}


def _unused(path: Path) -> str:
    """Return a run's id, with the first suffix -2, -3 … that no run has if it exists."""
    number = 2
    while path.with_name(f"{path.name}-{number}").exists():
        number += 1
    return f"{path.name}-{number}" if path.exists() else path.name


def run_id_for(
    name: str,
    arms: Mapping[str, HyperParameters],
    settings: ExperimentSettings,
    origin: Sequence[str] = (),
) -> str:
    """Return an experiment's run id: that of its run, if an earlier version named it differently.

    ``origin`` adds further inputs, e.g. the parent of a fork.
    """
    run_id = stable_run_id(name, arms, *origin)
    if (Path(settings.runs) / run_id / "manifest.json").exists():
        return run_id
    digest = parameters_digest(arms, origin)
    pattern = f"{_stem(name)}-{'[0-9a-f]' * _DIGITS}/manifest.json"
    for file in sorted(Path(settings.runs).glob(pattern)):
        with suppress(FileNotFoundError):  # deleted by another process
            if _digest_of_run(file, file.stat().st_mtime_ns, settings.base_dir, name) == digest:
                return file.parent.name
    return run_id


def stable_run_id(name: str, arms: Mapping[str, HyperParameters], *origin: str) -> str:
    """Return a new run's id: its name and eight digits of a hash of its parameters and origin."""
    return f"{_stem(name)}-{parameters_digest(arms, origin)[:_DIGITS]}"


def _stem(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-") or "run"


@cache
def _digest_of_run(file: Path, _modified: int, base_dir: str | None, name: str) -> str | None:
    """Return the digest of the parameters in a run's manifest; None for other experiments.

    Also None if this version cannot read the parameters, or their files are in another folder.
    """
    try:
        folder = RunFolder(file.parent)
        manifest = folder.manifest
        if manifest.name != name or manifest.settings.get("base_dir") != base_dir:
            return None
        fork = Fork.read(folder.path)
        arms = {
            arm: HyperParameters(**upgrade_parameters(data)[0])
            for arm, data in manifest.arms.items()
        }
        return parameters_digest(arms, () if fork is None else fork.origin)
    except RatchetError:
        return None
