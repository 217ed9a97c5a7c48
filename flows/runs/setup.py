"""Setup of a run before its first stage: its folder, recorder, and the arms' sessions."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flows.planning.space import estimate_disk, memory_warnings
from flows.process.tracking_uri import choose_mirrors, export_mlflow_credentials
from flows.runs.language_services import LanguageServices
from flows.runs.preflight import check_experiment
from flows.runs.recorder import RunRecorder, RunUsage, spent_by_run
from flows.runs.removed_states import StateRetention, untested_states
from flows.runs.result import ExperimentResult
from ratchet.experiment_files.loading import refuse_unread_budget
from ratchet.language_models.ledger import Ledger
from ratchet.language_models.pricing import Budget
from ratchet.store.garbage_collection import note_user
from ratchet.tracking.boot_clock import BootTime
from ratchet.tracking.environment import (
    author,
    capture_code_state,
    command_line,
    made_with,
)
from ratchet.tracking.live_file import LiveFile
from ratchet.tracking.logs import kept_log
from ratchet.tracking.manifest import RunManifest
from ratchet.tracking.observers import RunObserver
from ratchet.tracking.run_folder import RunFolder
from ratchet.tracking.run_lock import RunLock
from ratchet.tracking.run_warnings import WARNING
from ratchet.tracking.stage_kinds import KINDS
from ratchet.tracking.sweep_folder import STUDY_FILE
from ratchet.tracking.system_metrics import SystemSampler
from tasks.language.keys import LanguageArmKeys
from tasks.stages.families import AnySession, open_session
from tasks.stages.session import RunBilling
from trainers.config_warnings import CONFIG_WARNING, find_config_warnings

if TYPE_CHECKING:
    from flows.runs.resolve import ResolvedExperiment
    from flows.sweeps.study import MemberReports
    from ratchet.parameters.settings import ExperimentSettings
    from tasks.stages.session import FinishedTask


@dataclass
class ExperimentRun:
    """An open run: its arms' sessions, recorder, observer and services."""

    experiment: ResolvedExperiment
    folder: RunFolder
    recorder: RunRecorder
    sessions: list[AnySession]
    services: LanguageServices
    mirrors: dict[str, str]
    lock: RunLock
    live: LiveFile
    sampler: SystemSampler | None
    observer: RunObserver
    last_state_check: float = field(default_factory=time.monotonic)

    def last_tasks(self) -> list[FinishedTask]:
        """Return the last tasks in the graph of the flow run."""
        return [each for session in self.sessions for each in session.tasks.last()]

    def result(self, flow_run_id: str | None = None) -> ExperimentResult:
        """Return the result so far."""
        return ExperimentResult(
            run_id=self.folder.run_id,
            folder=str(self.folder.path),
            metrics=self.recorder.metrics,
            states=self.recorder.states,
            computed=self.recorder.computed,
            cached=self.recorder.cached,
            shared=self.recorder.shared,
            flow_run_id=flow_run_id,
        )

    def close(self) -> None:
        """Release all resources of the run, and finally its lock."""
        with ExitStack() as stack:  # releases all, last first, even if one fails
            stack.callback(self.lock.release)
            stack.callback(self.live.close)
            if self.sampler is not None:
                stack.callback(self.sampler.close)
            stack.callback(self.recorder.close)
            stack.callback(self.services.close)
            for session in self.sessions:
                stack.callback(session.close)


def open_run(experiment: ResolvedExperiment, flow_run_id: str | None) -> ExperimentRun:
    """Open the store and the run's folder, which is created if missing, and prepare the arms.

    Raises ParameterError if parameters are incompatible, and StoreError if the store can't be
    written, before any stage starts.
    """
    settings = experiment.settings
    check_experiment(experiment)
    mirrors = choose_mirrors(settings) if settings.tracking else {}
    if mirrors:
        export_mlflow_credentials(settings.home, settings.tracking_uri)
    manifest, reports = _manifest(experiment, flow_run_id), _reports_to_sweep(settings)
    store, keys = experiment.store, experiment.keys
    refuse_unread_budget(settings, experiment.arms.values())
    services = LanguageServices(settings, experiment.arms)
    services.check_prices()
    store.check_writable()
    folder = RunFolder.create(settings.runs, manifest)
    note_user(store, folder.path.parent)
    ledger = Ledger(Budget(settings.budget), folder.ledger_path)
    ledger.record_earlier_spending(spent_by_run(store, folder))
    live = LiveFile(folder.path)
    observer = RunObserver(folder, live, settings.stall_seconds)
    usage = RunUsage(folder, store, ledger)
    with kept_log(folder.path, folder.run_id):  # it logs changed code and warnings
        recorder = RunRecorder(folder, store, mirrors, keys, usage, observer)
        cautions = find_config_warnings(experiment.arms, settings.base_dir, settings.device)
        recorder.note(CONFIG_WARNING, cautions)
        if any(isinstance(each, LanguageArmKeys) for each in keys):  # their states are large
            disk = estimate_disk(experiment)
            if disk is not None:  # states are missing
                recorder.note(WARNING, [*disk.warnings, *memory_warnings(experiment)])
            recorder.note(WARNING, untested_states(store, settings, keys))
            recorder.on_stage = StateRetention(folder, store, settings, keys).stage_finished
    recorder.on_metrics = reports
    store.on_damage = recorder.damaged
    billing = RunBilling(ledger)
    sessions = [open_session(each, settings, store, billing) for each in keys]
    for session in sessions:
        session.before_calls = services.make_ready
        session.observer = observer
    period = settings.system_metrics_seconds if "mlflow" in mirrors else None
    return ExperimentRun(
        experiment,
        folder,
        recorder,
        sessions,
        services,
        mirrors,
        lock=RunLock(folder.path),
        live=live,
        sampler=None if period is None else SystemSampler(folder.path, period),
        observer=observer,
    )


def _reports_to_sweep(settings: ExperimentSettings) -> MemberReports | None:
    """Return the pruner's receiver of metrics if the run belongs to a sweep that prunes."""
    sweep = settings.parent_run_id
    if sweep is None or not (Path(settings.runs) / sweep / STUDY_FILE).exists():
        return None
    from flows.sweeps.study import MemberReports

    return MemberReports.for_member(Path(settings.runs) / sweep, str(settings.run_id))


def _manifest(experiment: ResolvedExperiment, flow_run_id: str | None) -> RunManifest:
    settings, fork = experiment.settings, experiment.fork
    kinds = {name: kind for keys in experiment.keys for name, kind in keys.kinds.items()}
    return RunManifest(
        run_id=experiment.run_id,
        name=experiment.name,
        arms={arm: params.to_saved_dict() for arm, params in experiment.arms.items()},
        settings=settings.to_dict(),
        started=BootTime.now(),
        versions=made_with(settings.num_threads),
        author=author(),
        code=capture_code_state(),
        seeds={arm: params.seed for arm, params in experiment.arms.items()},
        kinds=[kind for name, kind in kinds.items() if name not in KINDS],
        parent_run_id=settings.parent_run_id,
        fork_parent=fork.parent if fork else None,
        prefect_flow_run_ids=[flow_run_id] if flow_run_id else [],
        prefect_ui_url=_prefect_ui_url() if flow_run_id else None,
        command=command_line(),
    )


def _prefect_ui_url() -> str | None:
    from prefect.settings import PREFECT_UI_URL  # runs without a flow run don't need Prefect

    return PREFECT_UI_URL.value() or None
