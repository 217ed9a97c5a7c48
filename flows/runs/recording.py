"""``RunRecorder``: keeps the run folder up to what the flow has done, each number exactly once."""

from __future__ import annotations

import json
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flows.runs.derived_files import DerivedFiles, check_metrics, note_rebuilt
from flows.runs.result import TESTED_STAGES
from ratchet.errors import RatchetError, TrackingError
from ratchet.tracking.artifacts import add_artifact
from ratchet.tracking.content import flatten
from ratchet.tracking.manifest import ModelKind, StageRecord
from ratchet.tracking.run_folder import in_order_of_arms
from ratchet.tracking.run_warnings import WARNING, about_learning, run_warnings
from tasks.save import note_tracking_failure, sync_mirror
from tasks.stages.datasets import DATASETS_FILE
from tasks.stages.sequence import recorded_calls
from tasks.stages.session import STATE_FOLDER
from trainers.cautions import CAUTION, find_cautions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from flows.runs.usage import RunUsage
    from ratchet.language_models.usage import UsageMeter
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import Damage, StageStore
    from ratchet.tracking.metrics import MetricPoint
    from ratchet.tracking.observing import RunObserver
    from ratchet.tracking.run_folder import RunFolder
    from tasks.stages.decorator import StageOutcome
    from tasks.stages.families import AnyKeys

logger = logging.getLogger(__name__)

_Kept = TypeVar("_Kept")
FIRST_SYNC_SECONDS = 30.0
"""How long a run goes on before mirrors first hear of it; shorter ones tell it at the end."""
SYNC_SHARE = 0.02
"""The largest share of the time that may go into telling mirrors on the way."""


class RunRecorder:
    """Writes what happens into the run folder.

    Parameters
    ----------
    mirrors
        What is mirrored to on the way: the kinds, and where.
    arms
        The arms' stages; what the run has recorded beside them, it forgets.
    usage
        Keeps what the run has used of services.
    observer
        Is told of each finished stage.
    """

    def __init__(
        self,
        folder: RunFolder,
        store: StageStore,
        mirrors: Mapping[str, str],
        arms: Sequence[AnyKeys],
        usage: RunUsage,
        observer: RunObserver,
    ) -> None:
        self.folder = folder
        self.store = store
        self.made = self.found = 0
        self.metrics: dict[str, dict[str, dict[str, float]]] = {}
        self.states: dict[str, str] = {}
        self._forget_other_stages(arms)
        if folder.manifest.stages and check_metrics(folder, store):
            note_rebuilt(folder, ["metrics.jsonl"])
        self._note_cautions(arms)
        self._known = {record.place: record for record in folder.manifest.stages}
        self._read: dict[str, set[str]] = {}
        self._arms = [keys.arm for keys in arms]
        self._arrived: dict[str, list[StageRecord]] = {}
        self._usage = usage
        self._observer = observer
        self.on_metrics: Callable[[Sequence[MetricPoint]], None] | None = None
        self._keep_files(arms)
        self._mirror = _BackgroundMirrors(folder, mirrors) if mirrors else None

    @cached_property
    def _derived(self) -> DerivedFiles:
        return DerivedFiles(self.folder, self.store)

    def stage_finished(self, outcome: StageOutcome) -> None:
        """Record a finished stage: where it lies, its metrics, its table."""
        call, manifest = outcome.call, outcome.manifest
        changes: dict[str, Any] = {}
        if call.stage == "build_scenario":
            changes |= self._new_datasets(call.arm, manifest.key)
        self.found += outcome.hit
        self.made += not outcome.hit
        record = StageRecord(
            arm=call.arm,
            stage=call.name,
            iteration=manifest.iteration,
            start_iteration=manifest.start_iteration if call.stage == "train" else 0,
            key=manifest.key,
            hit=outcome.hit,
            reason=outcome.reason,
            seconds=manifest.seconds,
        )
        known = self._known.get(record.place)
        changes |= self._new_parameters(call.arm, manifest.parameters)
        points = self._record_metrics(record, manifest)
        self._note(WARNING, about_learning(points))
        usage = self._usage.add(outcome)
        written = self._derived.write(record, manifest)
        if known is None or known.key != record.key or not outcome.hit:
            self.folder.record_stages(self._shared(record), **changes)
            self._known[record.place] = record
        else:
            note_rebuilt(self.folder, written)
            if changes:
                self.folder.update(**changes)
        self._tell(outcome, usage)
        if self._mirror is not None and not outcome.hit:
            self._mirror.nudge()
        if self.on_metrics is not None:
            self.on_metrics(points)

    def _tell(self, outcome: StageOutcome, usage: UsageMeter | None) -> None:
        """Tell the observer of a finished stage, with what was done for it by this run."""
        call, seconds = outcome.call, outcome.manifest.seconds
        if outcome.hit:
            self._observer.tell("stage.found", str(outcome), call, seconds=seconds)
            return
        iterations = call.iteration - call.start_iteration if call.stage == "train" else 0
        self._observer.tell(
            "stage.made",
            str(outcome),
            call,
            seconds=seconds,
            iterations=1 if call.stage == "await_fine_tune_jobs" else iterations,
            usage=usage.to_table() if usage is not None else (),
        )

    def _shared(self, record: StageRecord) -> list[StageRecord]:
        """Return a record, and those of other arms' same stage that it changes.

        Arms that are played at once share stages: the first of them in the order of arms counts as
        the one that has made it, whichever did.
        """
        known = [each for each in self._arrived.get(record.key, []) if each.arm != record.arm]
        same = in_order_of_arms([*known, record], self._arms, lambda each: each.arm)
        made = [each for each in same if not each.hit]
        if len(made) == 1:  # several have made it anew where that was asked for
            found = {"hit": True, "reason": "stored"}
            first = {"hit": False, "reason": made[0].reason}
            same = [each.model_copy(update=found if i else first) for i, each in enumerate(same)]
        self._arrived[record.key] = same
        return [each for each in same if each not in known]

    def final_state(self, arm: str, key: str, kind: ModelKind | None) -> None:
        """Note which state an arm has ended with, and what loads its agents."""
        self.states = self._sorted({**self.states, arm: key})
        state = self.store.open(key) / STATE_FOLDER
        files = [str(path) for path in sorted(state.rglob("*")) if path.is_file()]
        manifest = self.folder.manifest
        changes: dict[str, Any] = {}
        if files and manifest.checkpoints.get(arm) != files:
            changes["checkpoints"] = self._sorted({**manifest.checkpoints, arm: files})
        if kind is not None and manifest.model_kinds.get(arm) != kind:
            changes["model_kinds"] = self._sorted({**manifest.model_kinds, arm: kind})
        if changes:
            self.folder.update(**changes)

    def _sorted(self, by_arm: Mapping[str, _Kept]) -> dict[str, _Kept]:
        """Return what is kept by arm in the order of the arms, not in that of their arrival."""
        return dict(in_order_of_arms(by_arm.items(), self._arms, lambda item: item[0]))

    def _new_datasets(self, arm: str, key: str) -> dict[str, Any]:
        """Return what the run's manifest is to know of an arm's datasets, if it is new."""
        hashes = json.loads((self.store.open(key) / DATASETS_FILE).read_text())
        known = self.folder.manifest.dataset_hashes
        if known.get(arm) == hashes:
            return {}
        return {"dataset_hashes": self._sorted({**known, arm: hashes})}

    def _new_parameters(self, arm: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return what it is to know of the parameters that an arm has read, if it is new."""
        known = self._read.setdefault(arm, set())
        new = flatten(parameters).keys() - known
        if not new:
            return {}
        known |= new
        read = {name: sorted(paths) for name, paths in self._read.items()}
        return {"read_parameters": self._sorted(read)}

    def damaged(self, damage: Damage) -> None:
        """Record that a stored stage was damaged and set aside."""
        self.folder.log_event(
            "stage_damaged",
            f"stage {damage.key} was damaged ({'; '.join(damage.problems)}), set aside in"
            f" {damage.moved_to}, and is made again.",
            key=damage.key,
        )

    def close(self) -> None:
        """Write what the run was billed to the end; wait for what goes on in the background."""
        self._note(WARNING, run_warnings(self.folder))
        self._usage.close()
        if self._mirror is not None:
            self._mirror.close()

    def _keep_files(self, arms: Sequence[AnyKeys]) -> None:
        """Copy what agents are played by: ``artifacts/files/ARM-AGENT/``."""
        for keys in arms:
            for name, file in keys.played_files.items():
                add_artifact(self.folder.path, f"{keys.arm}-{Path(name).stem}", "files", file)

    def _note_cautions(self, arms: Sequence[AnyKeys]) -> None:
        """Note what the run has not been told yet among its events, and in the log."""
        given = {keys.arm: keys.hyper_params for keys in arms}
        self._note(CAUTION, find_cautions(given, arms[0].base_path))

    def _note(self, kind: str, texts: Iterable[str]) -> None:
        """Log texts, once each, and record them as events of a kind."""
        told = {each["message"] for each in self.folder.read_events() if each["kind"] == kind}
        for text in texts:
            if text not in told:
                self.folder.log_event(kind, text)
                logger.warning("run %s: %s", self.folder.run_id, text)

    def _forget_other_stages(self, arms: Sequence[AnyKeys]) -> None:
        """Say which modules have changed since the run's stages were made.

        Stages that are neither current nor kept are forgotten by the run; the store keeps them.
        """
        recorded = self.folder.manifest.stages
        changed: set[str] = set()
        current = []
        for keys in arms:
            own = [record for record in recorded if record.arm == keys.arm]
            calls = recorded_calls(keys, ((r.stage, r.iteration) for r in own)) if own else {}
            for record in own:
                call = calls.get((record.stage, record.iteration))
                if call is not None and call.key == record.key:
                    current.append(record)
                manifest = self.store.peek(record.key, lately=True)
                if manifest is not None:
                    changed.update(keys.code_changes(manifest))
        if changed:
            modules, run_id = ", ".join(sorted(changed)), self.folder.run_id
            self.folder.log_event(
                "code_changed",
                f"code has changed since stages of this run were made: {modules}."
                f" {len(current)} of its {len(recorded)} finished stages are kept"
                f" (`ratchet resume {run_id}` keeps all).",
            )
            logger.warning("run %s: code has changed: %s", run_id, modules)
        if len(current) < len(recorded):
            self.folder.update(stages=[record.model_dump() for record in current])

    def _record_metrics(self, record: StageRecord, manifest: Manifest) -> list[MetricPoint]:
        points = self._derived.points(record, manifest)
        self.folder.append_points(points, replace=True)
        for point in points:
            if point.stage.partition("-")[0] in TESTED_STAGES:
                self.metrics.setdefault(record.arm, {})[point.stage] = dict(point.values)
        self.metrics = self._sorted(self.metrics)
        return points


class _BackgroundMirrors:
    """Tells mirrors on the way, in a thread, seldom enough not to slow the run."""

    def __init__(self, folder: RunFolder, mirrors: Mapping[str, str]) -> None:
        self._folder, self._mirrors = folder, mirrors
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mirror")
        self._running: Future[None] | None = None
        self._due = time.monotonic() + FIRST_SYNC_SECONDS

    def nudge(self) -> None:
        """Start a sync if none is running and it is time."""
        busy = self._running is not None and not self._running.done()
        if not busy and time.monotonic() >= self._due:
            self._running = self._thread.submit(self._sync)

    def close(self) -> None:
        """Wait for the sync that is running, if any."""
        self._thread.shutdown(wait=True)

    def _sync(self) -> None:
        begin = time.monotonic()
        for kind, place in self._mirrors.items():
            try:
                sync_mirror(self._folder, kind, place, ended=False)
            except TrackingError as error:
                note_tracking_failure(self._folder, error)
            except RatchetError:
                logger.exception("mirroring run %s", self._folder.run_id)
        end = time.monotonic()
        self._due = end + max(FIRST_SYNC_SECONDS, (end - begin) / SYNC_SHARE)
