"""Trains one job and leaves its model in the job's folder; see ``training_job`` for the border.

``python -m ratchet.language_models.service.training FOLDER``. Plain loops: a job on the base
model takes 1.8 CPU seconds from start to end, with TRL's trainers 8 to 10 (of which importing is
most; warm it is 3 times as much, ``benchmarks/tiny_model.py``); and they have no weights for
single messages.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ratchet.errors import ParameterError
from ratchet.language_models.service.dpo import PreferenceLoss
from ratchet.language_models.service.model_folder import CausalModel, load_model
from ratchet.language_models.service.optimization import Optimization
from ratchet.language_models.service.sft import SupervisedLoss
from ratchet.language_models.service.tokenizer import ChatTokenizer
from ratchet.language_models.service.training_examples import read_preferences, read_supervised
from ratchet.language_models.service.training_job import (
    EVENTS_FILE,
    MODEL_FOLDER,
    RESULT_FILE,
    HyperParameterValue,
    Method,
    TrainingEvent,
    TrainingJob,
    TrainingResult,
    append_training_event,
)
from ratchet.seeding import numpy_generator

_EPOCHS: Mapping[Method, int] = {"supervised": 3, "dpo": 2}
_LEARNING_RATES: Mapping[Method, float] = {"supervised": 1e-3, "dpo": 3e-4}
_TINY = 1e5
_BATCH_SIZE = 16
_BETA = 0.1
_WARMUP = 5


class Loss(Protocol):
    """What a method asks of a batch."""

    def __len__(self) -> int:
        """How many examples there are."""
        ...

    def tokens(self) -> int:
        """How many tokens are read in an epoch."""
        ...

    def __call__(self, places: list[int]) -> tuple[Tensor, dict[str, float]]:
        """Give the loss of the examples in these places, and more figures."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """A job's hyper-parameters as they are used.

    ``learning_rate_multiplier`` multiplies 1e-3 (dpo: 3e-4) for a model of 10⁵ parameters, less
    for larger ones: with the root of their number.
    """

    n_epochs: int
    batch_size: int
    learning_rate_multiplier: float
    beta: float | None

    @classmethod
    def of(cls, method: Method, given: Mapping[str, HyperParameterValue]) -> Plan:
        """Put numbers where ``"auto"`` or nothing stands.

        Raises
        ------
        ParameterError
            For a value that is no number, or no positive one.
        """
        epochs = _number(given, "n_epochs", _EPOCHS[method])
        batch_size = _number(given, "batch_size", _BATCH_SIZE)
        multiplier = _number(given, "learning_rate_multiplier", 1.0)
        beta = _number(given, "beta", _BETA) if method == "dpo" else None
        return cls(int(epochs), int(batch_size), multiplier, beta)

    def as_mapping(self) -> dict[str, float | int]:
        """Give the values by name, without what the method does not have."""
        values: dict[str, float | int] = {
            "n_epochs": self.n_epochs,
            "batch_size": self.batch_size,
            "learning_rate_multiplier": self.learning_rate_multiplier,
        }
        return values if self.beta is None else values | {"beta": self.beta}


def train(folder: Path) -> None:
    """Train a job; the same files and seed give the same weights, bit for bit on a CPU.

    Parameters
    ----------
    folder
        The job's, with ``job.json``. What an interrupted attempt left there is dropped.

    Raises
    ------
    RatchetError
        If the job, its model or its training file is not what it should be.
    """
    torch.set_num_threads(1)
    job = TrainingJob.read(folder)
    (folder / EVENTS_FILE).unlink(missing_ok=True)
    (folder / RESULT_FILE).unlink(missing_ok=True)
    shutil.rmtree(folder / MODEL_FOLDER, ignore_errors=True)
    plan = Plan.of(job.method, job.hyperparameters)
    base = Path(job.base_folder)
    model = load_model(base, training=True)
    loss = _make_loss(job, model, ChatTokenizer(base), plan)
    last = _optimise(folder, job, model, loss, plan)
    model.save(folder / MODEL_FOLDER)
    steps = plan.n_epochs * _steps_per_epoch(loss, plan)
    TrainingResult(plan.n_epochs * loss.tokens(), steps, plan.as_mapping(), last).write(folder)


def _make_loss(job: TrainingJob, model: CausalModel, tokenizer: ChatTokenizer, plan: Plan) -> Loss:
    file = Path(job.training_file)
    if job.method == "supervised":
        return SupervisedLoss(model, read_supervised(file, tokenizer, model.context_length))
    assert plan.beta is not None
    pairs = read_preferences(file, tokenizer, model.context_length)
    return PreferenceLoss(model, pairs, plan.beta, tokenizer.end_ids)


def _optimise(folder: Path, job: TrainingJob, model: CausalModel, loss: Loss, plan: Plan) -> float:
    """Go through the examples; gives the mean loss of the last epoch."""
    per_epoch = _steps_per_epoch(loss, plan)
    total = plan.n_epochs * per_epoch
    rate = _learning_rate(job.method, model) * plan.learning_rate_multiplier
    optimization = Optimization(model.parameters(), rate, steps=total, warmup=_WARMUP)
    done = 0
    losses: list[float] = []
    for epoch in range(plan.n_epochs):
        order = numpy_generator(job.seed, "fine-tuning", epoch, "order").permutation(len(loss))
        losses = []
        for start in range(0, len(order), plan.batch_size):
            value, figures = loss(order[start : start + plan.batch_size].tolist())
            losses.append(optimization.step(value))
            done += 1
            event = TrainingEvent(done, total, done / per_epoch, losses[-1], figures)
            append_training_event(folder, event)
    return sum(losses) / len(losses)


def _steps_per_epoch(loss: Loss, plan: Plan) -> int:
    return -(-len(loss) // plan.batch_size)


def _learning_rate(method: Method, model: CausalModel) -> float:
    size = sum(parameter.numel() for parameter in model.parameters())
    return _LEARNING_RATES[method] * float(min(1.0, (_TINY / size) ** 0.5))


def _number(given: Mapping[str, HyperParameterValue], name: str, automatic: float) -> float:
    value = given.get(name, "auto")
    if value == "auto":
        return automatic
    if isinstance(value, str) or not value > 0:
        raise ParameterError(f'{name}: got {value!r}, expected a positive number or "auto".')
    return float(value)


if __name__ == "__main__":
    train(Path(sys.argv[1]))
