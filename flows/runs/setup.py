"""What a run needs before its first stage: arms, store, run folder, stages to keep."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from flows.runs.identity import Arms, read_arms, stable_run_id, with_earlier_agents
from flows.runs.language_services import LanguageServices
from flows.runs.pinning import Fork, arm_keys, recorded_stages, run_path
from flows.runs.recording import RunRecorder
from flows.runs.usage import spent_by_run
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.reserved import refuse_unread_budget
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.store import StageStore
from ratchet.tracking.environment import capture_code_state, capture_versions, command_line
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.run_folder import RunFolder
from tasks.stages.families import AnyKeys
from tasks.stages.session import ArmSession
from tasks.stages.spending import Spending
from tasks.text.keys import TextArmKeys
from tasks.text.session import TextArmSession

logger = logging.getLogger(__name__)

AnySession: TypeAlias = ArmSession | TextArmSession


@dataclass
class ExperimentRun:
    """A run that is about to begin: its arms' sessions, and who records what they do."""

    settings: ExperimentSettings
    folder: RunFolder
    recorder: RunRecorder
    sessions: list[AnySession]
    services: LanguageServices
    tracking_uri: str | None

    def close(self) -> None:
        """Let go of all that the run has started and built."""
        for session in self.sessions:
            session.close()
        self.services.close()
        self.recorder.close()


def open_run(
    name: str,
    hyper_params: dict[str, Any],
    settings: dict[str, Any],
    arms: dict[str, dict[str, Any]] | None,
    *,
    keep: bool,
    flow_run_id: str | None,
) -> ExperimentRun:
    """Read the parameters, open the store, make or find the run's folder.

    Parameters
    ----------
    name
        The experiment's.
    hyper_params, settings, arms
        As given to the flow.
    keep
        Whether to keep the run's finished stages even if their code has changed.
    flow_run_id
        The Prefect flow run.

    Raises
    ------
    ParameterError
        If parameters are wrong.
    StoreError
        If the store can't be written; nothing has been begun then.
    """
    chosen = ExperimentSettings.from_dict(settings)
    base_dir = chosen.base_dir
    all_arms = read_arms(HyperParameters.from_dict(hyper_params, base_dir), arms, base_dir)
    all_arms = with_earlier_agents(all_arms, chosen)
    run_id = chosen.run_id or stable_run_id(name, all_arms)
    chosen = chosen.model_copy(update={"run_id": run_id})
    refuse_unread_budget(chosen, all_arms.values())
    services = LanguageServices(chosen, all_arms)
    services.check_prices()
    store = StageStore(chosen.store_url)
    store.check_writable()
    uri = tracking_uri(chosen)
    records = recorded_stages(chosen) if keep else None
    fork = Fork.read(run_path(chosen))
    keys = arm_keys(all_arms, chosen, store, fork, records)
    folder = _open_folder(name, all_arms, chosen, fork, flow_run_id)
    recorder = RunRecorder(folder, store, uri)
    store.on_damage = recorder.damaged
    _report_code_changes(folder, store, keys)
    spending = Spending(chosen.budget, spent_by_run(store, folder))
    sessions = [_session(each, chosen, store, spending, services) for each in keys]
    for session in sessions:
        session.on_wait = recorder.waiting
    return ExperimentRun(chosen, folder, recorder, sessions, services, uri)


def _session(
    keys: AnyKeys,
    settings: ExperimentSettings,
    store: StageStore,
    spending: Spending,
    services: LanguageServices,
) -> AnySession:
    """Make the session of an arm, of its family."""
    session: AnySession = (
        TextArmSession(keys, settings, store, spending)
        if isinstance(keys, TextArmKeys)
        else ArmSession(keys, settings, store)
    )
    session.before_calls = services.make_ready
    return session


def tracking_uri(settings: ExperimentSettings) -> str | None:
    """Return the MLflow to mirror to; None if the settings switch it off."""
    from ratchet.tracking.mlflow.mirror import default_tracking_uri

    if not settings.tracking:
        return None
    return settings.tracking_uri or default_tracking_uri(settings.home)


def _open_folder(
    name: str,
    arms: Arms,
    settings: ExperimentSettings,
    fork: Fork | None,
    flow_run_id: str | None,
) -> RunFolder:
    manifest = RunManifest(
        run_id=str(settings.run_id),
        name=name,
        arms={arm: params.to_saved_dict() for arm, params in arms.items()},
        settings=settings.to_dict(),
        versions=capture_versions(),
        code=capture_code_state(),
        seeds={arm: params.seed for arm, params in arms.items()},
        parent_run_id=settings.parent_run_id,
        fork_parent=fork.parent if fork else None,
        prefect_flow_run_ids=[flow_run_id] if flow_run_id else [],
        command=command_line(),
    )
    return RunFolder.create(settings.runs, manifest)


def _report_code_changes(folder: RunFolder, store: StageStore, keys: Sequence[AnyKeys]) -> None:
    """Say which modules have changed since the run's stages were made.

    Stages that are neither current nor kept are forgotten by the run; the store keeps them.
    """
    recorded = folder.manifest.stages
    by_arm = {each.arm: each for each in keys}
    changed: set[str] = set()
    current = []
    for record in recorded:
        if record.arm not in by_arm:
            continue
        own = by_arm[record.arm]
        if own.has(record.stage, record.iteration, record.key):
            current.append(record)
        manifest = store.peek(record.key)
        if manifest is not None:
            changed.update(own.code_changes(manifest))
    if changed:
        folder.log_event(
            "code_changed",
            f"code has changed since stages of this run were made: {', '.join(sorted(changed))}."
            f" {len(current)} of its {len(recorded)} finished stages are kept"
            f" (`ratchet resume {folder.run_id}` keeps all).",
        )
        logger.warning("run %s: code has changed: %s", folder.run_id, ", ".join(sorted(changed)))
    if len(current) < len(recorded):
        folder.update(stages=[record.model_dump() for record in current])
