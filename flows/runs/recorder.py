"""``RunRecorder``: writes stages, metrics and usage of a run to its folder, exactly once each."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flows.runs.derived_files import DerivedFiles, check_metrics, note_rebuilt
from flows.runs.unseen_inputs import UnseenInputs
from ratchet.errors import RatchetError, TrackingError
from ratchet.language_models.ledger import NOTHING
from ratchet.tracking.files import write_atomically
from ratchet.tracking.manifest import StageRecord
from ratchet.tracking.mirrors.payload import flatten
from ratchet.tracking.run_folder import in_order_of_arms
from ratchet.tracking.run_warnings import WARNING, about_training, run_warnings
from ratchet.tracking.stage_kinds import (
    AWAIT_FINE_TUNE_JOBS,
    BUILD_SCENARIO,
    TRAIN,
    kind_of,
)
from ratchet.tracking.trainer_files import add_artifact
from tasks.save import note_tracking_failure, sync_mirror
from tasks.stages.files import DATASETS_FILE, STATE_FOLDER
from tasks.stages.sequence import recorded_calls
from tasks.text.files import stage_usage

if TYPE_CHECKING:
    from ratchet.language_models.ledger import Ledger
    from ratchet.language_models.usage import UsageMeter
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import Damage, StageStore
    from ratchet.tracking.metrics import MetricPoint
    from ratchet.tracking.observers import RunObserver
    from ratchet.tracking.run_folder import RunFolder
    from tasks.stages.calls import StageCall, StageOutcome
    from tasks.stages.families import AnyKeys


logger = logging.getLogger(__name__)

_Value = TypeVar("_Value")
FIRST_SYNC_SECONDS = 30.0
"""Seconds before a run is first mirrored; shorter runs are mirrored only at their end."""
SYNC_SHARE = 0.02
"""Maximum fraction of the time spent on mirroring during a run."""


class RunRecorder:
    """Writer of a run's folder.

    Parameters
    ----------
    mirrors
        Mirrors to update during the run: kind → location.
    arms
        The arms' stages; other recorded stages are dropped from the run's manifest.
    usage
        Recorder of the services' usage.
    observer
        Receives an event for each finished stage.
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
        self._hits: list[str] = []
        self._computed: list[str] = []
        self.metrics: dict[str, dict[str, dict[str, float]]] = {}
        self.states: dict[str, str] = {}
        self._drop_other_stages(arms)
        if folder.manifest.stages and check_metrics(folder, store):
            note_rebuilt(folder, ["metrics.jsonl"])
        self._recorded = {record.place: record for record in folder.manifest.stages}
        self._kinds = [kind for keys in arms for kind in keys.kinds.values()]
        self._read: dict[str, set[str]] = {}
        self._arms = [keys.arm for keys in arms]
        self._arrived: dict[str, list[StageRecord]] = {}
        self._usage = usage
        self._observer = observer
        self._unseen = UnseenInputs(store, arms)
        self.on_metrics: Callable[[Sequence[MetricPoint]], None] | None = None
        self.on_stage: Callable[[StageCall], None] | None = None
        for keys in arms:
            for name, file in keys.played_files.items():
                add_artifact(folder.path, f"{keys.arm}-{Path(name).stem}", "files", file)
        self._mirror = _BackgroundMirrors(folder, mirrors) if mirrors else None

    @property
    def computed(self) -> int:
        """The number of stages that this flow run computed."""
        return len(self._computed)

    @property
    def cached(self) -> int:
        """The number of stages that it reused."""
        return len(self._hits)

    @property
    def shared(self) -> int:
        """The number of stages of ``cached`` that another of its arms computed."""
        return sum(key in self._computed for key in self._hits)

    @cached_property
    def _derived(self) -> DerivedFiles:
        return DerivedFiles(self.folder, self.store)

    def stage_finished(self, outcome: StageOutcome) -> None:
        """Record a finished stage: its key, metrics, tables and usage."""
        call, manifest = outcome.call, outcome.manifest
        changes: dict[str, Any] = {}
        if call.kind == BUILD_SCENARIO:
            changes |= self._new_datasets(call.arm, manifest.key)
        (self._hits if outcome.hit else self._computed).append(manifest.key)
        record = StageRecord(
            arm=call.arm,
            stage=call.name,
            iteration=manifest.iteration,
            start_iteration=manifest.start_iteration if call.kind == TRAIN else 0,
            key=manifest.key,
            hit=outcome.hit,
            reason=outcome.reason,
            seconds=manifest.seconds,
        )
        recorded = self._recorded.get(record.place)
        changes |= self._new_parameters(call.arm, manifest.parameters)
        points = self._record_metrics(record, manifest)
        unseen = self._unseen.of_stage(manifest, is_reused=outcome.hit)
        self.note(WARNING, [*about_training(points), *unseen])
        usage = self._usage.add(outcome)
        written = self._derived.write(record, manifest)
        if recorded is None or recorded.key != record.key or not outcome.hit:
            self.folder.record_stages(self._shared(record), **changes)
            self._recorded[record.place] = record
        else:
            note_rebuilt(self.folder, written)
            if changes:
                self.folder.update(**changes)
        self._emit_event(outcome, usage)
        if self._mirror is not None and not outcome.hit:
            self._mirror.nudge()
        if self.on_metrics is not None:
            self.on_metrics(points)
        if self.on_stage is not None:
            self.on_stage(call)

    def _emit_event(self, outcome: StageOutcome, usage: UsageMeter | None) -> None:
        """Emit the event of a finished stage, with usage and iterations of this run only."""
        call, seconds = outcome.call, outcome.manifest.seconds
        if outcome.hit:
            self._observer.tell("stage.cached", str(outcome), call, seconds=seconds)
            return
        iterations = call.iteration - call.start_iteration if call.kind == TRAIN else 0
        self._observer.tell(
            "stage.computed",
            str(outcome),
            call,
            seconds=seconds,
            iterations=1 if call.kind == AWAIT_FINE_TUNE_JOBS else iterations,
            usage=usage.to_table() if usage is not None else (),
        )

    def _shared(self, record: StageRecord) -> list[StageRecord]:
        """Return a record, and the records of the same stage in other arms that it changes.

        Concurrent arms share stages: the first arm in their order counts as the one that computed
        a stage, regardless of timing.
        """
        earlier = [each for each in self._arrived.get(record.key, []) if each.arm != record.arm]
        same = in_order_of_arms([*earlier, record], self._arms, lambda each: each.arm)
        computed = [each for each in same if not each.hit]
        if len(computed) == 1:  # several if stages are recomputed on request
            cached = {"hit": True, "reason": "stored"}
            first = {"hit": False, "reason": computed[0].reason}
            same = [each.model_copy(update=cached if i else first) for i, each in enumerate(same)]
        self._arrived[record.key] = same
        return [each for each in same if each not in earlier]

    def final_state(self, keys: AnyKeys) -> None:
        """Record an arm's final state, if it has one, and how its agents are loaded."""
        arm, key = keys.arm, keys.final_state_key
        if key is None:
            return
        self.states = self._sorted({**self.states, arm: key})
        state = self.store.open(key) / STATE_FOLDER
        facts = {
            "checkpoints": [str(path) for path in sorted(state.rglob("*")) if path.is_file()],
            "model_kinds": keys.model_kind,
            "optimizer_paths": keys.optimizer_path,
        }
        known = {name: getattr(self.folder.manifest, name) for name in facts}
        changes = {
            name: self._sorted({**known[name], arm: fact})
            for name, fact in facts.items()
            if fact and known[name].get(arm) != fact
        }
        if changes:
            self.folder.update(**changes)

    def _sorted(self, by_arm: Mapping[str, _Value]) -> dict[str, _Value]:
        """Sort values by the order of the arms."""
        return dict(in_order_of_arms(by_arm.items(), self._arms, lambda item: item[0]))

    def _new_datasets(self, arm: str, key: str) -> dict[str, Any]:
        """Return changes of the manifest for an arm's datasets, if any."""
        hashes = json.loads((self.store.open(key) / DATASETS_FILE).read_text())
        recorded = self.folder.manifest.dataset_hashes
        if recorded.get(arm) == hashes:
            return {}
        return {"dataset_hashes": self._sorted({**recorded, arm: hashes})}

    def _new_parameters(self, arm: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return changes of the manifest for the parameters that an arm read, if any."""
        paths = self._read.setdefault(arm, set())
        new = flatten(parameters).keys() - paths
        if not new:
            return {}
        paths |= new
        read = {name: sorted(read) for name, read in self._read.items()}
        return {"read_parameters": self._sorted(read)}

    def damaged(self, damage: Damage) -> None:
        """Record that a damaged stage was quarantined."""
        self.folder.log_event(
            "stage_damaged",
            f"stage {damage.key} was damaged ({'; '.join(damage.problems)}), moved to"
            f" {damage.moved_to}, and is recomputed.",
            key=damage.key,
        )

    def close(self) -> None:
        """Write the final usage and warnings; wait for the background mirroring."""
        self.note(WARNING, [*run_warnings(self.folder), *self._unseen.summary()])
        self._usage.close()
        if self._mirror is not None:
            self._mirror.close()

    def note(self, kind: str, texts: Iterable[str]) -> None:
        """Log texts and record them as events of a kind, once each."""
        noted = {each["message"] for each in self.folder.read_events() if each["kind"] == kind}
        for text in texts:
            if text not in noted:
                self.folder.log_event(kind, text)
                logger.warning("run %s: %s", self.folder.run_id, text)

    def _drop_other_stages(self, arms: Sequence[AnyKeys]) -> None:
        """Remove recorded stages that are neither current nor pinned, and log changed modules.

        The store keeps these stages.
        """
        recorded = self.folder.manifest.stages
        changed: set[str] = set()
        current = []
        for keys in arms:
            arm_records = [record for record in recorded if record.arm == keys.arm]
            calls = (
                recorded_calls(keys, ((r.stage, r.iteration) for r in arm_records))
                if arm_records
                else {}
            )
            for record in arm_records:
                call = calls.get((record.stage, record.iteration))
                if call is not None and call.key == record.key:
                    current.append(record)
                manifest = self.store.peek(record.key, allow_stale=True)
                if manifest is not None:
                    changed.update(keys.code_changes(manifest))
        if changed:
            modules, run_id = ", ".join(sorted(changed)), self.folder.run_id
            self.folder.log_event(
                "code_changed",
                f"code has changed since stages of this run were computed: {modules}."
                f" {len(current)} of its {len(recorded)} finished stages are reused"
                f" (`ratchet resume {run_id}` reuses all).",
            )
            logger.warning("run %s: code has changed: %s", run_id, modules)
        if len(current) < len(recorded):
            self.folder.update(stages=[record.model_dump() for record in current])

    def _record_metrics(self, record: StageRecord, manifest: Manifest) -> list[MetricPoint]:
        points = self._derived.points(record, manifest)
        self.folder.append_points(points, replace=True)
        for point in points:
            if kind_of(point.stage, self._kinds).is_test:
                self.metrics.setdefault(record.arm, {})[point.stage] = dict(point.values)
        self.metrics = self._sorted(self.metrics)
        return points


class _BackgroundMirrors:
    """Updates mirrors in a background thread, rarely enough not to slow the run."""

    def __init__(self, folder: RunFolder, mirrors: Mapping[str, str]) -> None:
        self._folder, self._mirrors = folder, mirrors
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mirror")
        self._running: Future[None] | None = None
        self._due = time.monotonic() + FIRST_SYNC_SECONDS

    def nudge(self) -> None:
        """Start a sync if one is due and none is running."""
        busy = self._running is not None and not self._running.done()
        if not busy and time.monotonic() >= self._due:
            self._running = self._thread.submit(self._sync)

    def close(self) -> None:
        """Wait for a running sync."""
        self._thread.shutdown(wait=True)

    def _sync(self) -> None:
        start = time.monotonic()
        for kind, location in self._mirrors.items():
            try:
                sync_mirror(self._folder, kind, location, ended=False)
            except TrackingError as error:
                note_tracking_failure(self._folder, error)
            except RatchetError:
                logger.exception("mirroring run %s", self._folder.run_id)
        end = time.monotonic()
        self._due = end + max(FIRST_SYNC_SECONDS, (end - start) / SYNC_SHARE)


_SUMMED = ("calls", "prompt_tokens", "completion_tokens", "training_tokens", "cost")


@dataclass(frozen=True)
class _StageUsage:
    """Usage of one stage of a run; ``labels`` contains whether this run is billed for it."""

    key: str
    labels: Mapping[str, str | int | bool]
    usage: UsageMeter

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each agent and model."""
        return [{**row, **self.labels} for row in self.usage.to_table()]


class RunUsage:
    """Writer of a run's ``usage.json``: usage of its stages, and the amounts billed to it.

    The rows contain the usage behind the run's results. The billed amount is lower if other runs
    paid for stages, and higher if requests were lost and retried; for such requests
    (``billed_unknown``) only an upper bound of the cost is available.
    """

    def __init__(self, folder: RunFolder, store: StageStore, ledger: Ledger) -> None:
        self._folder = folder
        self._store = store
        self._ledger = ledger
        self._stages: dict[tuple[str, str, int], _StageUsage] = {}
        self._written = ""

    def add(self, outcome: StageOutcome) -> UsageMeter | None:
        """Add a finished stage and update the file.

        Returns the stage's usage; None if the stage calls no service.
        """
        usage = stage_usage(self._store, outcome.manifest)
        if usage is None:
            return None
        call, manifest = outcome.call, outcome.manifest
        labels: dict[str, str | int | bool] = {
            "arm": call.arm,
            "stage": call.name,
            "iteration": call.iteration,
            "paid": manifest.run_id == self._folder.run_id,
        }
        self._stages[call.arm, call.name, call.iteration] = _StageUsage(manifest.key, labels, usage)
        self._write()
        return usage

    def close(self) -> None:
        """Write the billed amounts, including those of unfinished stages."""
        if self._stages or self._ledger.billed != NOTHING:
            self._write()
        self._ledger.close()

    def _write(self) -> None:
        stages = [self._stages[position] for position in sorted(self._stages)]
        once = {stage.key: stage for stage in reversed(stages)}.values()  # arms share stages
        billed = self._ledger.billed
        content = {
            "billed_at_least": billed.at_least,
            "billed_at_most": billed.at_most,
            "billed_unknown": self._ledger.num_open,
            "by_agent": _sums(once, "agent"),
            "by_stage": _sums(once, "stage"),
            "by_model": _sums(once, "model"),
            "rows": [row for stage in stages for row in stage.rows()],
        }
        text = json.dumps(content, indent=1, sort_keys=True) + "\n"
        if text != self._written:
            write_atomically(self._folder.usage_path, text)
            self._written = text


def spent_by_run(store: StageStore, folder: RunFolder) -> float:
    """Return the cost of the stages that a run computed; cached stages cost nothing."""
    spent = 0.0
    for key in {record.key for record in folder.manifest.stages}:
        manifest = store.peek(key, allow_stale=True)
        if manifest is not None and manifest.run_id == folder.run_id:
            usage = stage_usage(store, manifest)
            spent += usage.cost if usage is not None else 0.0
    return spent


def _sums(stages: Iterable[_StageUsage], name: str) -> dict[str, dict[str, float]]:
    """Return total tokens and cost by agent, stage or model; missing prices count as 0."""
    totals: dict[str, dict[str, float]] = {}
    for stage in stages:
        for row in stage.rows():
            total = totals.setdefault(str(row[name]), dict.fromkeys(_SUMMED, 0.0))
            for column in _SUMMED:
                total[column] += row[column] or 0
    return totals
