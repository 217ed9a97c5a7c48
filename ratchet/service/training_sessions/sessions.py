"""Training sessions: verbs are executed in order, once, and survive the process.

A thread executes them, one at a time. After a step the session's weights and moments are written to
a file if that takes less than half of the work since the last one; verbs after the last such file
are replayed from the journal, bit for bit.
"""

from __future__ import annotations

import logging
import math
import shutil
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import DataError, RatchetError
from ratchet.language_models.engines.rollouts import Completion, SampleRequest
from ratchet.language_models.local.adapters import weights_print
from ratchet.language_models.training_service.interface import TrainingExample
from ratchet.models.lora import Lora
from ratchet.service.api.errors import ApiError, not_found
from ratchet.service.database import Database
from ratchet.service.memory import has_room
from ratchet.service.models import ModelRegistry, StoredModel
from ratchet.service.training_sessions.checkpoints import (
    Checkpoints,
    record_checkpoint,
)
from ratchet.service.training_sessions.operations import (
    MODEL_STOPS,
    CreateSessionRequest,
    ForwardBackwardRequest,
    LoadWeightsRequest,
    OptimStepRequest,
    RefusedRequest,
    SaveWeightsRequest,
    SessionObject,
    SessionOperation,
    Stops,
)
from ratchet.service.training_sessions.records import (
    SessionRecords,
    conflict,
    is_refused,
)
from ratchet.store.local import sync_folder

if TYPE_CHECKING:  # need torch, which the engine's start imports in parallel
    from ratchet.service.training_sessions.state import SessionState

logger = logging.getLogger(__name__)

Samples = tuple[list[Completion], list[float] | None]
"""Completions, and the log-probabilities of a prompt if requested."""
VERBS: dict[str, type[SessionOperation]] = {
    "forward_backward": ForwardBackwardRequest,
    "optim_step": OptimStepRequest,
    "save_weights": SaveWeightsRequest,
    "load_weights": LoadWeightsRequest,
    "refused": RefusedRequest,
}
_STATE_FILE = "training_state.safetensors"  # next to the weights saved with it
_LOADED = 4  # sessions in memory, and as many samplers
_WORK_PER_SNAPSHOT = 2.0  # seconds of work per second of writing the weights


@dataclass(slots=True)
class _Open:
    """A session in memory, in the state after its first ``done`` verbs."""

    state: SessionState
    done: int = 0
    worked: float = 0.0  # seconds since the last snapshot
    writing: float = 0.0  # seconds of the last snapshot


class TrainingSessions:
    """All sessions of a service, and the thread that executes their verbs."""

    def __init__(self, database: Database, models: ModelRegistry, folder: Path) -> None:
        self.records = SessionRecords(database)
        self.checkpoints = Checkpoints(database)
        self._models = models
        self._folder = folder
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._samplers: OrderedDict[str, SessionState] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="training")
        self._stopping = threading.Event()
        folder.mkdir(parents=True, exist_ok=True)
        known = {row["id"] for row in database.rows("SELECT id FROM training_sessions")}
        for path in folder.iterdir():
            if path.name not in known:  # killed between deleting a session's rows and its files
                shutil.rmtree(path, ignore_errors=True)

    def start(self) -> None:
        """Resume the verbs that were accepted before the service ended."""
        for session_id, last in self.records.waiting():
            self._thread.submit(self._do_up_to, session_id, last)

    def stop(self) -> None:
        """Stop after the running verb; accepted ones are executed after the next start."""
        self._stopping.set()
        self._thread.shutdown(cancel_futures=True)

    def create(self, request: CreateSessionRequest) -> SessionObject:
        """Open a session, once for each intent."""
        model = self._models.get(request.model)
        if not request.resume:
            return self.records.describe(self.records.create(request, _prints(model)))
        saver = self.records.saver_of(model.id)
        if saver is None or not self.saves_state(model):
            raise ApiError(
                400,
                f"{model.id!r} was not saved with its optimizer by a session that is still here;"
                " start from its weights alone, without resume.",
                code="no_optimizer",
                param="resume",
            )
        names = ("model", "lora_rank", "lora_alpha", "seed")
        same = CreateSessionRequest(
            intent=request.intent,
            new_optimizer=request.new_optimizer,
            metadata=request.metadata,
            **{name: saver[name] for name in names},
        )
        return self.records.describe(self.records.create(same, saver["weights"], model.id))

    def saves_state(self, model: StoredModel) -> bool:
        """Return whether a session can start from the weights, and the optimizer, of a model."""
        saver = self.records.saver_of(model.id)
        return saver is not None and (model.folder / _STATE_FILE).is_file()

    def submit(
        self, session_id: str, name: str, verb: SessionOperation, *, skips: bool = False
    ) -> Future[dict[str, Any]]:
        """Accept a verb; its response is available once it and all before it are recorded."""
        self.records.accept(session_id, name, verb.sequence, verb.content(), skips=skips)
        return self._thread.submit(self._do_up_to, session_id, verb.sequence)

    def sample(self, session_id: str, requests: Sequence[SampleRequest]) -> Future[Samples]:
        """Sample with a session's weights after all its verbs."""
        self.records.used(session_id)
        return self._thread.submit(self._sample, session_id, requests)

    def again(self, session_id: str, sequence: int) -> Future[dict[str, Any]]:
        """Wait for a verb that was accepted before."""
        if self.records.verb(session_id, sequence) is None:
            raise not_found("verb", str(sequence), param="sequence")
        return self._thread.submit(self._do_up_to, session_id, sequence)

    def sample_and_score(
        self,
        model: str,
        requests: Sequence[SampleRequest],
        prompt: Sequence[int] | None = None,
        stops: Stops = MODEL_STOPS,
    ) -> Future[Samples]:
        """Sample with the weights of a model, and return a prompt's log-probabilities under it."""
        stored = self._models.get(model)
        return self._thread.submit(lambda: _sampled(self._sampler(stored), requests, prompt, stops))

    def delete(self, session_id: str) -> Future[None]:
        """Delete a session and its weights; the models that it saved remain."""
        self.records.row(session_id)
        return self._thread.submit(self._delete, session_id)

    def _delete(self, session_id: str) -> None:
        self.records.delete(session_id)
        self._drop(session_id)

    def forget_unused(self, before: float, reason: str) -> None:
        """Delete unused sessions, between verbs; see :meth:`SessionRecords.unused`."""
        if self.records.unused(before):
            self._thread.submit(self._forget_unused, before, reason)

    def _forget_unused(self, before: float, reason: str) -> None:
        for session_id in self.records.forget_unused(before, reason):
            self._drop(session_id)

    def _drop(self, session_id: str) -> None:
        self._open.pop(session_id, None)
        shutil.rmtree(self._folder / session_id, ignore_errors=True)

    def _sample(self, session_id: str, requests: Sequence[SampleRequest]) -> Samples:
        last = self.records.next_sequence(session_id) - 1
        return _sampled(self._done_up_to(session_id, last).state, requests)

    def _sampler(self, model: StoredModel) -> SessionState:
        """Return a saved model, loaded into memory."""
        from ratchet.service.training_sessions.state import SessionState

        if model.id not in self._samplers:
            saver = self.records.saver_of(model.id)
            if saver is not None:  # a run that samples from its next model needs the previous less
                self._samplers.pop(saver["begins"] or saver["model"], None)
            _make_room(self._samplers, model)
            self._samplers[model.id] = SessionState(model, Lora(), 0)
        self._samplers.move_to_end(model.id)
        return self._samplers[model.id]

    def _do_up_to(self, session_id: str, sequence: int) -> dict[str, Any]:
        """Execute verbs up to one; return its response."""
        answer = self.records.answer(session_id, sequence)
        if answer is None:
            self._done_up_to(session_id, sequence)
            answer = self.records.answer(session_id, sequence)
        assert answer is not None
        return answer

    def _done_up_to(self, session_id: str, sequence: int) -> _Open:
        try:
            session = self._opened(session_id)
            waits = self.records.first_waiting(session_id)
            if waits is not None:  # a refused verb may be replaced
                session.done = min(session.done, waits)
            while session.done <= sequence:
                if self._stopping.is_set():
                    raise ApiError(503, "The service is stopping.", code="stopping")
                row = self.records.verb(session_id, session.done)
                assert row is not None
                self._do(session, row)
        except BaseException:
            self._open.pop(session_id, None)  # its state may be that of half a verb
            raise
        return session

    def _opened(self, session_id: str) -> _Open:
        """Return a session in memory, loaded from its last snapshot if necessary."""
        if session_id in self._open:
            self._open.move_to_end(session_id)
            return self._open[session_id]
        from ratchet.service.training_sessions.state import SessionState

        row = self.records.row(session_id)
        model = self._models.get(row["model"])
        if _prints(model) != row["weights"]:
            raise conflict(
                f"The weights of {model.id!r} are not those that the session started from."
                " Restore them, or open another session.",
                "base_model_changed",
            )
        state = self._state_of_saver(row)
        if state is None:
            _make_room(self._open, model)
            lora = Lora(rank=row["lora_rank"], alpha=row["lora_alpha"])
            state = SessionState(model, lora, row["seed"])
        session = _Open(state, row["snapshot"])
        if session.done:
            session.state.read(self._file(session_id, session.done))
        elif row["begins"] is not None:
            start = self._models.get(row["begins"]).folder / _STATE_FILE
            session.state.read(start, optimizer=not row["new_optimizer"])
        self._open[session_id] = session
        return session

    def _state_of_saver(self, row: sqlite3.Row) -> SessionState | None:
        """Take the state of the session that saved the weights to start from, if it is in memory.

        A run that opens a session in each iteration thus has its model in memory once.
        """
        saver = None if row["begins"] is None else self.records.saver_of(row["begins"])
        session = None if saver is None else self._open.pop(saver["id"], None)
        return None if session is None else session.state

    def _do(self, session: _Open, row: sqlite3.Row) -> None:
        """Execute a verb, and record its response unless it was recorded before a restart.

        A refusal is a response, and changes nothing. Errors of the machine are raised, and the verb
        is executed later.
        """
        began = time.monotonic()
        also: Callable[[sqlite3.Connection], None] = _nothing
        answer: dict[str, Any] = {}
        try:
            request = VERBS[row["verb"]].model_validate_json(
                f'{{"sequence":{row["sequence"]},{row["request"][1:]}'
            )
            if isinstance(request, SaveWeightsRequest):
                if row["answer"] is None:
                    answer, also = self._save(session, row, request)
            elif isinstance(request, LoadWeightsRequest):
                answer = self._load(session.state, row, request)
            else:
                answer = _apply(session.state, request)
        except (OSError, MemoryError):
            raise
        except RatchetError as error:
            answer = {"refused": str(error)}
        if "refused" in answer and row["answer"] is not None and not is_refused(row):
            raise conflict(
                f"The session cannot be restored: {answer['refused']} Open another session.",
                "not_restored",
            )
        session.done += 1
        session.worked += time.monotonic() - began
        if row["answer"] is None:
            self.records.done(row, {"sequence": row["sequence"], **answer}, also)
        if "refused" not in answer and isinstance(request, OptimStepRequest | LoadWeightsRequest):
            is_due = session.worked >= _WORK_PER_SNAPSHOT * session.writing
            if is_due or isinstance(request, LoadWeightsRequest):  # its model may be deleted
                self._write(row["session"], session)

    def _load(
        self, state: SessionState, row: sqlite3.Row, request: LoadWeightsRequest
    ) -> dict[str, Any]:
        """Load the weights of a model that a session of the same base model has saved."""
        model = self._models.get(self.checkpoints.model_of(request.path))
        session = self.records.row(row["session"])
        saver = self.records.saver_of(model.id)
        if saver is None or not self.saves_state(model):
            raise DataError(
                f"{request.path!r} was not saved for training. Load a checkpoint of save_state,"
                " whose path contains /weights/."
            )
        for name in ("weights", "lora_rank"):
            if saver[name] != session[name]:
                raise DataError(
                    f"{request.path!r} was trained from {saver['model']!r} with LoRA rank"
                    f" {saver['lora_rank']}, this session trains {session['model']!r} with rank"
                    f" {session['lora_rank']}. Create a training client from its path instead."
                )
        state.read(model.folder / _STATE_FILE, optimizer=request.optimizer)
        return {"model": model.id}

    def _save(
        self, opened: _Open, row: sqlite3.Row, request: SaveWeightsRequest
    ) -> tuple[dict[str, Any], Callable[[sqlite3.Connection], None]]:
        """Save the weights as a model, in one transaction with the verb's response."""
        session = self.records.row(row["session"])
        start = self._models.get(session["model"])
        identity = self.records.history(session["id"], row["sequence"])[:12]
        model_id = f"train:{start.root}:{request.name}:{identity}"
        answer = {"model": model_id}
        if request.checkpoint is not None:
            answer["path"] = self.checkpoints.check_new(request.checkpoint, request.name, model_id)

        def name(connection: sqlite3.Connection) -> None:
            if request.checkpoint is not None:
                record_checkpoint(connection, request.checkpoint, request.name, model_id)

        if (
            self.records.saver_of(model_id) is not None
        ):  # by an earlier session with the same history
            return answer, name
        folder_name = f"{session['id']}-{identity}"
        work_folder = self._folder / session["id"] / "saved"
        shutil.rmtree(work_folder, ignore_errors=True)
        work_folder.mkdir(parents=True)
        opened.state.save_model(work_folder)
        if request.optimizer:
            if not row["sequence"] or row["sequence"] != session["snapshot"]:
                self._write(session["id"], opened)
            _link_or_copy(self._file(session["id"], row["sequence"]), work_folder / _STATE_FILE)
        self._models.put(work_folder, folder_name)

        def register(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO models VALUES (?, ?, ?, ?, ?)",
                (model_id, folder_name, int(time.time()), start.root, session["id"]),
            )
            name(connection)

        return answer, register

    def _write(self, session_id: str, session: _Open) -> None:
        """Write weights and moments to a file."""
        began = time.monotonic()
        file = self._file(session_id, session.done)
        file.parent.mkdir(parents=True, exist_ok=True)
        session.state.write(file)
        sync_folder(file.parent)
        sync_folder(self._folder)
        self.records.snapshot(session_id, session.done)
        for other in file.parent.glob("state-*"):
            if other != file:
                other.unlink()
        session.writing, session.worked = time.monotonic() - began, 0.0

    def _file(self, session_id: str, done: int) -> Path:
        return self._folder / session_id / f"state-{done}.safetensors"


def _make_room(loaded: OrderedDict[str, Any], model: StoredModel) -> None:
    """Drop the least recently used until there is room for another model, in float32."""
    while loaded and (len(loaded) >= _LOADED or not has_room(2 * model.weight_bytes)):
        loaded.popitem(last=False)


def _sampled(
    state: SessionState,
    requests: Sequence[SampleRequest],
    prompt: Sequence[int] | None = None,
    stops: Stops = MODEL_STOPS,
) -> Samples:
    try:
        if prompt is None:
            return state.sample(requests, stops), None
        example = TrainingExample(tuple(prompt), (0, *[1] * (len(prompt) - 1)))
        pass_output = state.forward_backward([example], "cross_entropy", {}, backward=False)
        return state.sample(requests, stops), [math.nan, *pass_output.log_probs[0][1:]]
    except RatchetError as error:
        raise ApiError(400, str(error), code="invalid_value", param="requests") from error


def _apply(state: SessionState, request: SessionOperation) -> dict[str, Any]:
    if isinstance(request, OptimStepRequest):
        return {"metrics": state.optim_step(request.optimizer.to_settings())}
    if isinstance(request, RefusedRequest):
        raise DataError(request.message)
    assert isinstance(request, ForwardBackwardRequest)
    pass_output = state.forward_backward(
        [example.to_example() for example in request.examples],
        request.loss,
        request.loss_config,
        backward=request.backward,
    )
    return {"metrics": pass_output.metrics, "log_probs": pass_output.log_probs}


def _link_or_copy(file: Path, target: Path) -> None:
    try:
        target.hardlink_to(file)
    except OSError:  # some file systems have no links
        shutil.copyfile(file, target)


def _prints(model: StoredModel) -> str:
    """Return digests of the weights of a model and of its base."""
    return ":".join(weights_print(folder) for folder in (*model.below, model.folder))


def _nothing(connection: sqlite3.Connection) -> None:
    """Write no additional rows."""
