"""Job folder: the files exchanged by the service and a trainer process.

The service writes ``job.json`` and a separate process calls ``train(folder: Path) -> None`` of
``ratchet.service.training.train``, imported in advance, so that a trainer is warm when its job
starts. It writes into the folder:

``events.jsonl``
    a line per optimizer step (:class:`TrainingEvent`), appended and flushed as it goes;
``checkpoints/step-N/``
    optionally a model at the end of each epoch except the last;
``model/``
    the trained model in Hugging Face's layout, weights in safetensors; or, with LoRA, the adapter
    in PEFT's, with a reference to its base (``engine.adapters``);
``result.json``
    last, renamed into place (:class:`TrainingResult`): its presence means that all is complete.

and returns. If it raises or is killed, or there is no result, the job has failed and the last
lines of its stderr are the reason. An interrupted job restarts in a new folder and must produce
the same weights. ``python -m`` with the module and the folder does the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from ratchet.errors import DataError
from ratchet.tracking.files import JsonLines, write_atomically

Method = Literal["supervised", "dpo"]
HyperParameterValue = int | float | str  # a number, or "auto"
_Content = TypeVar("_Content", bound="TrainingJob | TrainingResult")

JOB_FILE = "job.json"
EVENTS_FILE = "events.jsonl"
RESULT_FILE = "result.json"
MODEL_FOLDER = "model"
CHECKPOINTS_FOLDER = "checkpoints"
VALID_LOSS = "valid_loss"
"""The loss on the validation file, among an event's metrics."""


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Inputs of a training job (``job.json``).

    Parameters
    ----------
    id
        The job's id.
    method
        ``supervised`` or ``dpo``.
    base_folder
        The model to start from, in Hugging Face's layout; or the complete model under an adapter.
    training_file
        Examples in OpenAI's format for the method, JSON lines, checked by the service. Each is
        ``{"messages": [...]}`` with an optional ``weight`` 0 | 1 per assistant message, or
        ``{"input": {"messages": [...]}, "preferred_output": [m], "non_preferred_output": [m]}``.
    validation_file
        The same format, or None.
    hyperparameters
        All of ``n_epochs``, ``batch_size``, ``learning_rate_multiplier`` (and ``beta`` for
        ``dpo``); each a number or ``"auto"``, which the trainer turns into a number. Also
        ``lora_rank``, ``lora_alpha`` and ``lora_dropout`` where not all weights are trained, and
        ``micro_batch_size`` where a batch is split to save memory.
    seed
        Seed of all randomness: same files, same seed, same weights.
    base_model
        The id of the model to start from; empty for the folder's name.
    adapters
        If that model is an adapter: the folders of adapters to merge into ``base_folder``, starting
        with the one next to it.
    """

    id: str
    method: Method
    base_folder: str
    training_file: str
    validation_file: str | None
    hyperparameters: Mapping[str, HyperParameterValue]
    seed: int
    base_model: str = ""
    adapters: Sequence[str] = ()

    def write(self, folder: Path) -> None:
        """Write ``job.json`` into the folder."""
        write_atomically(folder / JOB_FILE, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, folder: Path) -> TrainingJob:
        """Read ``job.json``; raises DataError if it is invalid."""
        return _read(cls, folder / JOB_FILE)


@dataclass(frozen=True, slots=True)
class TrainingEvent:
    """One optimizer step.

    Parameters
    ----------
    step, total_steps
        Counted from 1.
    epoch
        Epochs done after this step, e.g. 0.5.
    train_loss
        Mean loss of the step's batch.
    metrics
        Other metrics by name, e.g. ``reward_accuracy`` of ``dpo``, ``valid_loss``.
    """

    step: int
    total_steps: int
    epoch: float
    train_loss: float
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrainingCheckpoint:
    """An intermediate model; ``folder`` is relative to the job's."""

    step: int
    folder: str
    train_loss: float


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Outcome of a job (``result.json``).

    Parameters
    ----------
    trained_tokens
        Tokens seen in training: those of the examples times the epochs.
    steps
        Optimizer steps made.
    hyperparameters
        As used: no ``"auto"`` left.
    train_loss
        Mean loss of the last epoch.
    checkpoints
        Intermediate models in order, without the final one; may be empty.
    """

    trained_tokens: int
    steps: int
    hyperparameters: Mapping[str, float | int]
    train_loss: float
    checkpoints: tuple[TrainingCheckpoint, ...] = ()

    def write(self, folder: Path) -> None:
        """Write ``result.json`` into the folder, after everything else."""
        write_atomically(folder / RESULT_FILE, json.dumps(asdict(self), indent=1))

    @classmethod
    def read(cls, folder: Path) -> TrainingResult:
        """Read ``result.json``; raises DataError if it is invalid."""
        result = _read(cls, folder / RESULT_FILE)
        checkpoints = tuple(TrainingCheckpoint(**_as_mapping(item)) for item in result.checkpoints)
        return cls(
            trained_tokens=result.trained_tokens,
            steps=result.steps,
            hyperparameters=result.hyperparameters,
            train_loss=result.train_loss,
            checkpoints=checkpoints,
        )


def begin_attempt(folder: Path) -> TrainingJob:
    """Read the job of a folder and delete files of an interrupted attempt."""
    job = TrainingJob.read(folder)
    for name in (EVENTS_FILE, RESULT_FILE):
        (folder / name).unlink(missing_ok=True)
    for name in (MODEL_FOLDER, CHECKPOINTS_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
    return job


def append_training_event(folder: Path, event: TrainingEvent) -> None:
    """Append a line to ``events.jsonl``, without waiting for the disk."""
    with (folder / EVENTS_FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(event)) + "\n")


def read_training_events(folder: Path, offset: int = 0) -> tuple[list[TrainingEvent], int]:
    """Read the events from a byte offset on; return them and the next offset."""
    items, end = JsonLines(folder / EVENTS_FILE).read(offset)
    return [TrainingEvent(**item) for item in items], end


def _read(kind: type[_Content], path: Path) -> _Content:
    names = {field.name for field in fields(kind)}
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or set(content) != names:
        raise DataError(f"{path}: got {content!r:.200}, expected an object with {sorted(names)}.")
    return kind(**content)


def _as_mapping(item: Any) -> Mapping[str, Any]:  # noqa: ANN401 -- parsed JSON
    if not isinstance(item, Mapping):
        raise DataError(f"{RESULT_FILE}: got the checkpoint {item!r}, expected an object.")
    return item
