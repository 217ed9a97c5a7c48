"""Trainer process of a job; see ``job_folder`` for its files.

``python -m ratchet.service.training.train FOLDER``. For models that plain torch runs it imports no
other library: a job on the base model takes 1.8 CPU seconds from start to end
(``benchmarks/tiny_model.py``).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ratchet.language_models.local.model import LanguageModel
from ratchet.models.llama_shape import plain_shape
from ratchet.models.optimizers import ScheduledAdam
from ratchet.models.supervision import SupervisedLoss
from ratchet.seeding import derive_seed, numpy_generator, seeded_globals
from ratchet.service.training.job_folder import (
    CHECKPOINTS_FOLDER,
    MODEL_FOLDER,
    VALID_LOSS,
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
from ratchet.service.training.trained_model import TrainedModel

SUPERVISION = 0.2
"""α of small models in :class:`PreferenceLoss`; others learn by DPO alone."""
_WARMUP = 5
_KEPT_EPOCHS = 3


def train(folder: Path) -> None:
    """Train a job; the same files and seed give the same weights, bit for bit on a CPU.

    Files of an interrupted attempt in the job's folder are deleted.
    """
    job = begin_attempt(folder)
    base = Path(job.base_folder)
    is_plain = plain_shape(base) is not None
    if is_plain:
        torch.set_num_threads(1)
    plan = Plan.of(job.method, job.hyperparameters)
    supervision = SUPERVISION if is_plain and not plan.lora.rank else 0.0
    if plan.supervised_weight is not None:
        supervision = plan.supervised_weight
    adapters = [Path(adapter) for adapter in job.adapters]
    with seeded_globals(derive_seed(job.seed, "fine-tuning", purpose="dropout")):
        trained = TrainedModel(
            *(job.base_model or base.name, base, adapters, plan.lora, job.seed),
            shares_prompts=False,
            saves_memory=True,
        )
        loss, validation = (
            None if file is None else _make_loss(plan, Path(file), trained.model, supervision)
            for file in (job.training_file, job.validation_file)
        )
        assert loss is not None  # every job has a training file
        last, checkpoints = _optimise(folder, job, trained, loss, validation, plan)
    trained.save(folder / MODEL_FOLDER)
    steps = plan.n_epochs * _steps_per_epoch(loss, plan)
    tokens = plan.n_epochs * loss.tokens()
    TrainingResult(tokens, steps, plan.as_mapping(), last, checkpoints).write(folder)


def _make_loss(plan: Plan, file: Path, model: LanguageModel, supervision: float) -> Loss:
    if plan.method == "supervised":
        return SupervisedLoss(model, read_supervised(file, model.tokenizer, model.context_length))
    pairs = read_preferences(file, model.tokenizer, model.context_length)
    return PreferenceLoss(
        model,
        pairs,
        plan.beta,
        supervision=supervision,
        reading=plan.micro_batch_size if plan.is_cut else len(pairs),
    )


def _optimise(
    folder: Path,
    job: TrainingJob,
    trained: TrainedModel,
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
    parameters = trained.parameters()
    rate = plan.learning_rate(trained.size)
    adam = ScheduledAdam(parameters, rate, steps=total, warmup=_WARMUP)
    done = 0
    losses: list[float] = []
    checkpoints: list[TrainingCheckpoint] = []
    for epoch in range(plan.n_epochs):
        order = numpy_generator(job.seed, "fine-tuning", epoch, "order").permutation(len(loss))
        losses = []
        for start in range(0, len(order), plan.batch_size):
            batch = order[start : start + plan.batch_size].tolist()
            with trained.dropping_inputs():
                value, figures = follow(adam, parameters, loss, batch, plan.micro_batch_size)
            losses.append(value)
            done += 1
            if validation is not None and done % per_epoch == 0:
                figures = {**figures, VALID_LOSS: _mean_loss(validation, plan.micro_batch_size)}
            event = TrainingEvent(done, total, done / per_epoch, losses[-1], figures)
            append_training_event(folder, event)
        if plan.n_epochs - _KEPT_EPOCHS <= epoch < plan.n_epochs - 1:
            checkpoint_folder = f"{CHECKPOINTS_FOLDER}/step-{done}"
            trained.save(folder / checkpoint_folder)
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
