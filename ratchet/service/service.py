"""The combined parts of a model service, and deletion of files that its rules do not retain."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from ratchet.errors import RatchetError
from ratchet.language_models.engines.interface import Engine
from ratchet.service.batching import Batcher
from ratchet.service.database import Database
from ratchet.service.files import FileStore
from ratchet.service.jobs.history import JobHistory
from ratchet.service.jobs.jobs import JobStore
from ratchet.service.jobs.runner import TRAINER, JobRunner
from ratchet.service.models import BROUGHT, ModelRegistry, StoredModel
from ratchet.service.settings import RetentionRules, ServiceSettings
from ratchet.service.training_sessions.records import RUN_SESSION, TINKER
from ratchet.service.training_sessions.sessions import TrainingSessions
from ratchet.tracking.boot_clock import BootTime

logger = logging.getLogger(__name__)

_DAY = 86400.0
_OF_A_RUN = "json_extract(jobs.metadata, '$.ratchet_intent') IS NOT NULL"
"""Jobs whose models and files are referenced by a run of Ratchet, on any machine."""
_OF_A_RUNS_CLIENT = f"training_sessions.intent LIKE '{TINKER}{RUN_SESSION}%'"
_STARTS_OF_RUNS = f"SELECT model FROM jobs WHERE {_OF_A_RUN}"
_SURPLUS = f"""
SELECT model_id FROM (
    SELECT model_id, ROW_NUMBER() OVER (PARTITION BY job_id ORDER BY sequence DESC) AS place
    FROM checkpoints WHERE model_id IN (SELECT id FROM models)
    AND model_id NOT IN (SELECT fine_tuned_model FROM jobs WHERE fine_tuned_model IS NOT NULL)
) WHERE place > ? AND model_id NOT IN ({_STARTS_OF_RUNS})
"""
_SURPLUS_OF_SESSIONS = f"""
SELECT model_id FROM (
    SELECT models.id AS model_id,
    ROW_NUMBER() OVER (PARTITION BY job_id ORDER BY models.rowid DESC) AS place
    FROM models JOIN training_sessions ON training_sessions.id = job_id
    WHERE training_sessions.intent IS NULL OR NOT {_OF_A_RUNS_CLIENT}
) WHERE place > 1 + ? AND model_id NOT IN ({_STARTS_OF_RUNS})
"""
_OTHERS_MODELS = f"""
SELECT models.id, models.created FROM models
LEFT JOIN jobs ON jobs.id = models.job_id
LEFT JOIN training_sessions ON training_sessions.id = models.job_id
WHERE models.id NOT IN ({_STARTS_OF_RUNS}) AND (
    models.job_id = '{BROUGHT}' OR (jobs.id IS NOT NULL AND NOT ({_OF_A_RUN}))
    OR (training_sessions.id IS NOT NULL AND (training_sessions.intent IS NULL
        OR (training_sessions.intent LIKE '{TINKER}%' AND NOT {_OF_A_RUNS_CLIENT})))
) ORDER BY models.created DESC, models.rowid DESC
"""
_OTHERS_FILES = f"""
SELECT id, MAX(created_at, COALESCE(
    (SELECT MAX(created_at) FROM jobs WHERE files.id IN (training_file, validation_file)), 0
)) AS last FROM files WHERE last < ? AND NOT EXISTS (
    SELECT 1 FROM jobs
    WHERE files.id IN (training_file, validation_file, result_file) AND {_OF_A_RUN}
)
"""


class Retention:
    """Deletes everything that a service's rules do not retain.

    Ages ignore changes of the system's time since the service has started. ``forget`` is called
    with the ids of deleted models.
    """

    def __init__(
        self,
        rules: RetentionRules,
        database: Database,
        files: FileStore,
        models: ModelRegistry,
        training: TrainingSessions,
        forget: Callable[[str], None],
    ) -> None:
        self._rules = rules
        self._database = database
        self._files = files
        self._models = models
        self._training = training
        self._forget = forget
        self._start = BootTime.now()

    def sweep(self) -> None:
        """Delete what is not retained; data in use stays until the next sweep."""
        if self._rules.checkpoints is not None:
            limit = self._rules.checkpoints
            for surplus, whose in ((_SURPLUS, "job"), (_SURPLUS_OF_SESSIONS, "training session")):
                for row in self._database.rows(surplus, (limit,)):
                    reason = f"of a {whose}'s checkpoints, {limit} are kept"
                    self._delete_model(row["model_id"], reason)
        now = self._start.system_now()
        for model_id in self._training.checkpoints.expired(now):
            self._delete_model(model_id, "it was saved with ttl_seconds and has expired")
        if self._rules.days is None:
            return
        before = now - self._rules.days * _DAY
        reason = f"unused for {self._rules.days:g} days"
        for row in self._database.rows(_OTHERS_MODELS):  # adapters before their base models
            if max(row["created"], self._models.last_used(row["id"])) < before:
                self._delete_model(row["id"], reason)
        self._training.forget_unused(before, reason)
        for row in self._database.rows(_OTHERS_FILES, (before,)):
            try:
                self._files.delete(row["id"], reason=reason)
            except RatchetError as error:
                logger.info("Kept the file %s: %s", row["id"], error)

    def _delete_model(self, model_id: str, reason: str) -> None:
        try:
            self._models.delete(model_id, reason=reason)
        except RatchetError as error:
            logger.info("Kept the model %s: %s", model_id, error)
            return
        self._forget(model_id)


class ModelService:
    """Database, files, models, jobs, training sessions, and the engine's thread."""

    def __init__(
        self,
        settings: ServiceSettings,
        base: StoredModel,
        make_engine: Callable[[], Engine],
        *,
        trainer: str = TRAINER,
        further: Mapping[str, Callable[[], Path]] | None = None,
    ) -> None:
        self.settings = settings
        folder, limits = settings.folder, settings.limits
        folder.mkdir(parents=True, exist_ok=True)
        self.database = Database(settings.database_file)
        self.files = FileStore(self.database, folder / "files", limits)
        self.models = ModelRegistry(self.database, settings.models_folder, base, further)
        self.jobs = JobStore(self.database, self.files, self.models, limits)
        self.history = JobHistory(self.database)
        self.training = TrainingSessions(self.database, self.models, folder / "training")
        self.batcher = Batcher(
            make_engine, waiting_max=limits.waiting_completions, loaded_max=limits.loaded_models
        )
        retention = Retention(
            *(settings.retention, self.database, self.files, self.models, self.training),
            forget=self.batcher.forget,
        )
        self.runner = JobRunner(
            *(self.database, self.files, self.models, folder / "jobs"),
            defaults=settings.job_defaults,
            trainer=trainer,
            tidy=retention.sweep,
        )

    async def find(self, model_id: str) -> StoredModel:
        """Find a model by its id or a path of saved weights; creation does not block others."""
        model_id = self.training.checkpoints.model_of(model_id)
        if self.models.must_be_created(model_id):
            return await run_in_threadpool(self.models.get, model_id)
        return self.models.get(model_id)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Load the engine and run jobs until the end of the block."""
        self.batcher.start(self.models.base)
        self.runner.start()
        self.training.start()
        try:
            yield
        finally:
            self.training.stop()
            self.runner.stop()
            self.batcher.stop()
            self.database.close()
