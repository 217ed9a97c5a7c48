"""Trainer whose models are hashes of the training file, chained to the base model's hash."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from ratchet.service.training.job_folder import (
    MODEL_FOLDER,
    TrainingEvent,
    TrainingJob,
    TrainingResult,
    append_training_event,
)


def train(folder: Path) -> None:
    job = TrainingJob.read(folder)
    base = (Path(job.base_folder) / "config.json").read_bytes()
    digest = hashlib.sha256(base + Path(job.training_file).read_bytes()).hexdigest()
    append_training_event(folder, TrainingEvent(1, 2, 0.5, 1.0, {}))
    time.sleep(float(os.environ.get("GAME_TRAINING_SECONDS", "0.2")))
    append_training_event(folder, TrainingEvent(2, 2, 1.0, 0.5, {}))
    place = folder / MODEL_FOLDER
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps({"digest": digest}))
    numbers = {name: 2 for name in job.hyperparameters}
    TrainingResult(120, 2, numbers, train_loss=0.5, checkpoints=()).write(folder)
