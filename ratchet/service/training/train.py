"""Trainer process of a job in plain torch; see ``job_folder`` for its files.

``python -m ratchet.service.training.train FOLDER``. For models that
plain torch runs: a job on the base model takes 1.8 CPU seconds from start to end, with TRL's
trainers 8 to 10 (mostly imports; 3 times as much when warm, ``benchmarks/tiny_model.py``). Other
models use ``trl.train``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ratchet.errors import ParameterError
from ratchet.language_models.engines.hugging_face_model import load_model
from ratchet.language_models.engines.model_folder import CausalModel
from ratchet.language_models.engines.tokenizer import ChatTokenizer
from ratchet.models.optimizers import ScheduledAdam
from ratchet.models.supervision import SupervisedLoss
from ratchet.seeding import numpy_generator
from ratchet.service.training.job_folder import (
    CHECKPOINTS_FOLDER,
    MODEL_FOLDER,
    VALID_LOSS,
    Method,
    TrainingCheckpoint,
    TrainingEvent,
    TrainingJob,
    TrainingResult,
    append_training_event,
    begin_attempt,
)
from ratchet.service.training.losses import Loss, PreferenceLoss, follow
from ratchet.service.training.plan import Plan
from ratchet.service.training.tokens import read_preferences, read_supervised

_WARMUP = 5
_KEPT_EPOCHS = 3


def train(folder: Path) -> None:
    """Train a job; the same files and seed give the same weights, bit for bit on a CPU.

    Files of an interrupted attempt in the job's folder are deleted.
    """
    torch.set_num_threads(1)
    job = begin_attempt(folder)
    plan = Plan.of(job.method, job.hyperparameters)
    if plan.lora.rank:
        raise ParameterError(
            f"lora_rank: got {plan.lora.rank}; the plain trainer trains all weights. Start the"
            " service with --trainer trl, or leave it out."
        )
    base = Path(job.base_folder)
    model = load_model(base, [Path(adapter) for adapter in job.adapters], training=True)
    tokenizer = ChatTokenizer(base)
    loss, validation = (
        None if file is None else _make_loss(job.method, Path(file), model, tokenizer, plan)
        for file in (job.training_file, job.validation_file)
    )
    assert loss is not None  # every job has a training file
    last, checkpoints = _optimise(folder, job, model, loss, validation, plan)
    model.save(folder / MODEL_FOLDER)
    steps = plan.n_epochs * _steps_per_epoch(loss, plan)
    tokens = plan.n_epochs * loss.tokens()
    TrainingResult(tokens, steps, plan.as_mapping(), last, checkpoints).write(folder)


def _make_loss(
    method: Method, file: Path, model: CausalModel, tokenizer: ChatTokenizer, plan: Plan
) -> Loss:
    if method == "supervised":
        return SupervisedLoss(model, read_supervised(file, tokenizer, model.context_length))
    assert plan.beta is not None
    pairs = read_preferences(file, tokenizer, model.context_length)
    reading = plan.micro_batch_size if plan.is_cut else len(pairs)
    return PreferenceLoss(model, pairs, plan.beta, tokenizer.end_ids, reading=reading)


def _optimise(
    folder: Path,
    job: TrainingJob,
    model: CausalModel,
    loss: Loss,
    validation: Loss | None,
    plan: Plan,
) -> tuple[float, tuple[TrainingCheckpoint, ...]]:
    """Train for all epochs; return the mean loss of the last epoch, and the checkpoints.

    The last step of each epoch reports the loss on the validation file. As with OpenAI, the models
    of the last three epochs are saved; the last one is the job's own.
    """
    per_epoch = _steps_per_epoch(loss, plan)
    total = plan.n_epochs * per_epoch
    parameters = model.parameters()
    rate = plan.learning_rate(sum(parameter.numel() for parameter in parameters))
    adam = ScheduledAdam(parameters, rate, steps=total, warmup=_WARMUP)
    done = 0
    losses: list[float] = []
    checkpoints: list[TrainingCheckpoint] = []
    for epoch in range(plan.n_epochs):
        order = numpy_generator(job.seed, "fine-tuning", epoch, "order").permutation(len(loss))
        losses = []
        for start in range(0, len(order), plan.batch_size):
            batch = order[start : start + plan.batch_size].tolist()
            value, figures = follow(adam, parameters, loss, batch, plan.micro_batch_size)
            losses.append(value)
            done += 1
            if validation is not None and done % per_epoch == 0:
                figures = {**figures, VALID_LOSS: _mean_loss(validation, plan.micro_batch_size)}
            event = TrainingEvent(done, total, done / per_epoch, losses[-1], figures)
            append_training_event(folder, event)
        if plan.n_epochs - _KEPT_EPOCHS <= epoch < plan.n_epochs - 1:
            checkpoint_folder = f"{CHECKPOINTS_FOLDER}/step-{done}"
            model.save(folder / checkpoint_folder)
            checkpoints.append(TrainingCheckpoint(done, checkpoint_folder, losses[-1]))
    return sum(losses) / len(losses), tuple(checkpoints)


@torch.no_grad()
def _mean_loss(loss: Loss, batch_size: int) -> float:
    """Return the loss of all examples as one batch."""
    starts = range(0, len(loss), batch_size)
    batches = [list(range(start, min(start + batch_size, len(loss)))) for start in starts]
    weights = [loss.weight(batch) for batch in batches]
    sums = [weight * float(loss(batch)[0]) for batch, weight in zip(batches, weights, strict=True)]
    return sum(sums) / sum(weights)


def _steps_per_epoch(loss: Loss, plan: Plan) -> int:
    return -(-len(loss) // plan.batch_size)


if __name__ == "__main__":
    train(Path(sys.argv[1]))
