"""What one of TRL's trainers tells on its way: an event for each step, a model for each epoch."""
# ruff: noqa: ANN401 -- trainers hand whatever they have to callbacks

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ratchet.language_models.service.training.job_folder import (
    CHECKPOINTS_FOLDER,
    VALID_LOSS,
    TrainingCheckpoint,
    TrainingEvent,
    append_training_event,
)

_METRICS = {
    "rewards/accuracies": "reward_accuracy",
    "rewards/margins": "reward_margin",
    "mean_token_accuracy": "token_accuracy",
    "entropy": "entropy",
    "grad_norm": "gradient_norm",
    "learning_rate": "learning_rate",
}
"""Figures that are kept, and what they are called in events."""


class Progress(TrainerCallback):
    """Writes events and checkpoints into a job's folder; its methods are called by the trainer.

    After the last epoch there is no checkpoint, but the model.
    """

    def __init__(self, folder: Path, n_epochs: int, write: Callable[[Any, Path], None]) -> None:
        self._folder = folder
        self._n_epochs = n_epochs
        self._write = write
        self._last: TrainingEvent | None = None
        self.losses: list[float] = []
        self.checkpoints: list[TrainingCheckpoint] = []

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Take a step's figures; they are written once those of an evaluation may have come."""
        logs = more["logs"]
        if "loss" not in logs:  # an evaluation's, or the summary at the end
            return
        self.losses.append(logs["loss"])
        metrics = {ours: logs[theirs] for theirs, ours in _METRICS.items() if theirs in logs}
        epoch = float(state.epoch or 0)
        step, total = state.global_step, state.max_steps
        self._last = TrainingEvent(step, total, epoch, self.losses[-1], metrics)

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Add the loss on the validation file to the last step."""
        if self._last is not None:
            figures = {**self._last.metrics, VALID_LOSS: more["metrics"]["eval_loss"]}
            self._last = replace(self._last, metrics=figures)

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Write a checkpoint, unless it would be the model itself."""
        if round(state.epoch or 0) < self._n_epochs:
            place = f"{CHECKPOINTS_FOLDER}/step-{state.global_step}"
            self._write(more["model"], self._folder / place)
            checkpoint = TrainingCheckpoint(state.global_step, place, self.losses[-1])
            self.checkpoints.append(checkpoint)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Write the event of the step before."""
        self._flush()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Write the last step's event."""
        self._flush()

    def _flush(self) -> None:
        if self._last is not None:
            append_training_event(self._folder, self._last)
            self._last = None
