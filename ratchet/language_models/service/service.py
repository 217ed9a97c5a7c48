"""The parts of a running model service, combined."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from starlette.concurrency import run_in_threadpool

from ratchet.language_models.engines.interface import Engine
from ratchet.language_models.service.batching import Batcher
from ratchet.language_models.service.database import Database
from ratchet.language_models.service.files import FileStore
from ratchet.language_models.service.jobs.history import JobHistory
from ratchet.language_models.service.jobs.jobs import JobStore
from ratchet.language_models.service.jobs.runner import JobRunner
from ratchet.language_models.service.jobs.trainer_choice import PLAIN_TRAINER, JobTrainer
from ratchet.language_models.service.models import ModelRegistry, StoredModel
from ratchet.language_models.service.retention import Retention
from ratchet.language_models.service.settings import ServiceSettings
from ratchet.language_models.service.training_sessions.sessions import TrainingSessions


class ModelService:
    """Database, files, models, jobs, training sessions, and the engine's thread."""

    def __init__(
        self,
        settings: ServiceSettings,
        base: StoredModel,
        make_engine: Callable[[], Engine],
        *,
        trainer: JobTrainer = PLAIN_TRAINER,
        further: Mapping[str, Callable[[], Path]] | None = None,
    ) -> None:
        self.settings = settings
        folder, limits = settings.folder, settings.limits
        folder.mkdir(parents=True, exist_ok=True)
        self.database = Database(settings.database_file)
        self.files = FileStore(self.database, folder / "files", limits)
        self.models = ModelRegistry(self.database, settings.models_folder, base, further)
        self.jobs = JobStore(self.database, self.files, self.models, limits, trainer)
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
            *(self.database, self.files, self.models, folder / "jobs", trainer),
            tidy=retention.sweep,
            memory=self.batcher.asleep,
        )

    async def find(self, model_id: str) -> StoredModel:
        """Find a model; other requests are answered while one is created."""
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
