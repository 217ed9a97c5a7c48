"""Progress of TRL's trainers: an event for each step, a checkpoint for each epoch."""
# ruff: noqa: ANN401 -- trainers pass callbacks arbitrary arguments

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ratchet.service.training.job_folder import (
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
"""Metrics to record, with their names in events."""


class Progress(TrainerCallback):
    """Callback that writes a job's events and checkpoints into its folder.

    The last epoch gets no checkpoint: its result is the model.
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
        """Record a step's metrics; they are written after any evaluation of the step."""
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
        """Write a checkpoint, unless this is the last epoch."""
        if round(state.epoch or 0) < self._n_epochs:
            place = f"{CHECKPOINTS_FOLDER}/step-{state.global_step}"
            self._write(more["model"], self._folder / place)
            checkpoint = TrainingCheckpoint(state.global_step, place, self.losses[-1])
            self.checkpoints.append(checkpoint)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        """Write the previous step's event."""
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
