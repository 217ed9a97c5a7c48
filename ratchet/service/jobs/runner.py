"""Runs fine-tuning jobs one at a time, each in a separate process."""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ratchet.errors import RatchetError
from ratchet.service.database import Database
from ratchet.service.files import FileStore
from ratchet.service.jobs.jobs import add_event
from ratchet.service.jobs.outcome import record_failure, record_success
from ratchet.service.jobs.trainer_process import NO_ROOM, TrainerProcess
from ratchet.service.models import ModelRegistry
from ratchet.service.training.job_folder import (
    VALID_LOSS,
    HyperParameterValue,
    TrainingEvent,
    TrainingJob,
    TrainingResult,
    read_training_events,
)

logger = logging.getLogger(__name__)

TRAINER = "ratchet.service.training.train"
_POLL_SECONDS = 0.05
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0  # seconds until a failed start is retried
_TIDY_SECONDS = 3600.0
_MACHINE_TROUBLE = (OSError, sqlite3.Error)


class JobRunner:
    """A thread that runs the oldest queued job in a loop.

    Remains of interrupted jobs are deleted from the folder. A failure of the machine, such as a
    full disk, does not fail a job: it is restarted until it succeeds. ``tidy`` is called before
    each job, and every hour without one; a job trains by the function ``train`` of the module
    ``trainer``. ``defaults`` are the hyper-parameters of jobs that do not set them.
    """

    def __init__(
        self,
        database: Database,
        files: FileStore,
        models: ModelRegistry,
        folder: Path,
        *,
        defaults: Mapping[str, HyperParameterValue],
        trainer: str,
        tidy: Callable[[], None],
    ) -> None:
        self._database = database
        self._files = files
        self._models = models
        self._folder = folder
        self._defaults = defaults
        self._trainer = trainer
        self._tidy = tidy
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._problem: str | None = None
        self._lock = threading.Lock()
        self._spare: TrainerProcess | None = None
        self._current: tuple[str, TrainerProcess] | None = None
        self._thread = threading.Thread(target=self._work, name="jobs", daemon=True)

    def start(self) -> None:
        """Requeue interrupted jobs and start the thread."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._put_back("The service has restarted; the job will restart.")
        self._wake.set()
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why jobs cannot run at the moment; None if they can."""
        if self._thread.ident is not None and not self._thread.is_alive():
            return "The thread that runs jobs has ended. Start the service again."
        return self._problem

    def stop(self) -> None:
        """Stop the thread; a running job stays recorded as running and restarts next time."""
        self._stopping.set()
        self._wake.set()
        with self._lock:
            if self._current is not None:
                self._current[1].kill()
        if self._thread.ident is not None:
            self._thread.join()
        with self._lock:
            if self._spare is not None:
                self._spare.close()
                self._spare = None

    def wake(self) -> None:
        """Notify the thread of a new job."""
        self._wake.set()

    def warm_up(self) -> None:
        """Start a trainer in advance: its imports take longer than a small job's training."""
        with self._lock:
            if self._stopping.is_set() or (self._spare is not None and self._spare.is_alive):
                return
            if self._spare is not None:
                self._spare.close()
            self._spare = TrainerProcess(self._trainer)

    def kill(self, job_id: str) -> None:
        """Kill a job's process, if it is the running one."""
        with self._lock:
            if self._current is not None and self._current[0] == job_id:
                self._current[1].kill()

    def _work(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                idle = not self._work_once()
            except Exception as error:  # the thread must survive for later jobs
                reason = getattr(error, "strerror", None) or str(
                    error
                )  # no paths: any client may read it
                self._problem = f"Jobs cannot run: {type(error).__name__}: {reason}."
                logger.error("Jobs cannot run; next try in %.1f s", pause, exc_info=error)
                self._stopping.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            pause, self._problem = _FIRST_PAUSE, None
            if idle:
                self._wake.wait(_TIDY_SECONDS)
                self._wake.clear()

    def _work_once(self) -> bool:
        """Run the next job; return whether there was one."""
        if self._problem is not None:
            self._put_back(f"{self._problem} The job starts over.")
        self._tidy()
        row = self._take()
        if row is None:
            return False
        try:
            self._run(row)
        except _MACHINE_TROUBLE:
            raise
        except Exception as error:
            logger.error("The job %s failed", row["id"], exc_info=error)
            what = str(error) if isinstance(error, RatchetError) else "see the service's log"
            record_failure(self._database, row["id"], f"The job could not be run: {what}")
        finally:
            shutil.rmtree(self._folder / row["id"], ignore_errors=True)
        return True

    def _put_back(self, message: str) -> None:
        """Requeue jobs that are recorded as running but are not."""
        with self._database.transaction() as connection:
            rows = connection.execute("SELECT id FROM jobs WHERE status = 'running'").fetchall()
            for row in rows:
                connection.execute("UPDATE jobs SET status = 'queued' WHERE id = ?", (row["id"],))
                add_event(connection, row["id"], message)

    def _take(self) -> sqlite3.Row | None:
        with self._database.transaction() as connection:
            row: sqlite3.Row | None = connection.execute(
                "SELECT * FROM jobs WHERE status = 'queued' ORDER BY sequence LIMIT 1"
            ).fetchone()
            if row is not None:
                connection.execute(
                    "UPDATE jobs SET status = 'running', attempts = attempts + 1 WHERE id = ?",
                    (row["id"],),
                )
                add_event(connection, row["id"], "Started training.")
        return row

    def _run(self, row: sqlite3.Row) -> None:
        job_id = row["id"]
        folder = self._folder / job_id / str(row["attempts"])  # not where an orphan may write
        folder.mkdir(parents=True)
        job = self._job(row)
        if not job.hyperparameters.get("lora_rank"):  # otherwise the adapter is small
            _require_disk_space(folder, self._models.get(row["model"]).weight_bytes)
        job.write(folder)
        process = self._process()
        with self._lock:
            self._current = (job_id, process)
        try:
            if self._is_running(job_id):  # otherwise it was cancelled before its process was known
                process.start_job(folder)
                code = self._watch(job_id, folder, process)
                self._finish(row, folder, process, code)
        finally:
            with self._lock:
                self._current = None
            process.close()

    def _job(self, row: sqlite3.Row) -> TrainingJob:
        validation, model = row["validation_file"], self._models.get(row["model"])
        return TrainingJob(
            id=row["id"],
            method=row["method"],
            base_folder=str(model.complete_folder),
            training_file=str(self._files.get(row["training_file"]).path),
            validation_file=None if validation is None else str(self._files.get(validation).path),
            hyperparameters={
                **self._defaults,
                **json.loads(row["hyperparameters"]),
            },
            seed=row["seed"],
            base_model=model.id,
            adapters=tuple(map(str, model.adapters)),
        )

    def _process(self) -> TrainerProcess:
        with self._lock:
            process, self._spare = self._spare, None
        if process is not None and process.is_alive:
            return process
        if process is not None:
            process.close()
        return TrainerProcess(self._trainer)

    def _watch(self, job_id: str, folder: Path, process: TrainerProcess) -> int:
        """Record the trainer's events until it ends; return its exit code."""
        offset, code = 0, None
        while code is None:
            code = process.wait(_POLL_SECONDS)
            events, offset = read_training_events(folder, offset)
            self._record(job_id, events)
        return code

    def _record(self, job_id: str, events: Sequence[TrainingEvent]) -> None:
        if not events:
            return
        now = int(time.time())
        rows = [_event_row(job_id, event, now) for event in events]
        with self._database.transaction() as connection:
            connection.executemany(
                "INSERT INTO events (id, job_id, created_at, level, message, type, data)"
                " VALUES (?, ?, ?, 'info', ?, 'metrics', ?)",
                rows,
            )
        self._problem = None

    def _finish(self, row: sqlite3.Row, folder: Path, process: TrainerProcess, code: int) -> None:
        if self._stopping.is_set() or not self._is_running(row["id"]):
            return
        if code == NO_ROOM:
            logger.error(
                "The trainer of %s ran out of disk space:\n%s", row["id"], process.last_lines()
            )
            raise _no_room()
        try:
            if code != 0:
                raise RatchetError(f"The trainer ended with {_words(code)}.")
            result = TrainingResult.read(folder)
            record_success(
                *(self._database, self._files, self._models, row, folder, result),
                defaults=self._defaults,
            )
        except RatchetError as error:
            lines = process.last_lines()
            message = f"{error} Its last lines:\n{lines}" if lines else str(error)
            record_failure(self._database, row["id"], message)

    def _is_running(self, job_id: str) -> bool:
        row = self._database.row("SELECT status FROM jobs WHERE id = ?", (job_id,))
        return row is not None and row["status"] == "running"


def _event_row(job_id: str, event: TrainingEvent, now: int) -> tuple[str, str, int, str, str]:
    data = {"step": event.step, "epoch": event.epoch, "train_loss": event.train_loss}
    message = f"Step {event.step}/{event.total_steps}: training loss={event.train_loss:.4f}"
    if VALID_LOSS in event.metrics:
        message += f", validation loss={event.metrics[VALID_LOSS]:.4f}"
    data_text = json.dumps({**data, **event.metrics})
    return f"ftevent-{secrets.token_hex(12)}", job_id, now, message, data_text


def _require_disk_space(folder: Path, num_bytes: int) -> None:
    """Raise OSError if weights could not be written, before they are trained in vain."""
    if shutil.disk_usage(folder).free < num_bytes:
        raise _no_room()


def _no_room() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _words(code: int) -> str:
    if code >= 0:
        return f"code {code}"
    if code == -signal.SIGKILL:
        return "the signal SIGKILL (perhaps the memory is short: lower micro_batch_size)"
    try:
        return f"the signal {signal.Signals(-code).name}"
    except ValueError:
        return f"the signal {-code}"
