"""Fake trainer whose behaviour the job's suffix selects."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from ratchet.service.training.job_folder import (
    MODEL_FOLDER,
    TrainingCheckpoint,
    TrainingEvent,
    TrainingJob,
    TrainingResult,
    append_training_event,
)

STEPS = 3


def train(folder: Path) -> None:
    job = TrainingJob.read(folder)
    gate = Path(os.environ["FAKE_TRAINER_GATE"]) if "FAKE_TRAINER_GATE" in os.environ else None
    for step in range(1, STEPS + 1):
        event = TrainingEvent(step, STEPS, step / STEPS, 1.0 / step, {"valid_loss": 2.0 / step})
        append_training_event(folder, event)
    if gate is not None:
        (gate / "pids").open("a").write(f"{os.getpid()}\n")
        while not (gate / "open").exists():
            time.sleep(0.01)
    if gate is not None and (gate / "full").exists():
        Path("/dev/full").write_text("no room")
    if gate is not None and (gate / "raise").exists():
        sys.stderr.write("what came before\n")
        raise ValueError("the loss is not finite")
    if gate is not None and (gate / "die").exists():
        sys.stderr.write("about to be killed\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    checkpoint = folder / "checkpoints" / "step-2"
    for place in (folder / MODEL_FOLDER, checkpoint):
        place.mkdir(parents=True)
        content = {
            "base": job.base_folder,
            "seed": job.seed,
            "method": job.method,
            "hyperparameters": dict(job.hyperparameters),
        }
        (place / "config.json").write_text(json.dumps(content))
    numbers = {name: 2 for name in job.hyperparameters}
    TrainingResult(
        trained_tokens=120,
        steps=STEPS,
        hyperparameters=numbers,
        train_loss=0.5,
        checkpoints=(TrainingCheckpoint(2, "checkpoints/step-2", 0.5),),
    ).write(folder)
