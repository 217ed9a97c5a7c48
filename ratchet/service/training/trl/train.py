"""Train one job through TRL, for models that run through transformers, optionally with LoRA.

``python -m ratchet.service.training.trl.train FOLDER``; see ``job_folder`` for the
interface. Only the training process imports this module: the import takes seconds, and for the
complete process turns off network access and telemetry and selects one GPU.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["DO_NOT_TRACK"] = os.environ["TQDM_DISABLE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]

import torch
from datasets import Dataset
from transformers import AutoTokenizer, PrinterCallback
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from ratchet.language_models.engines.adapters import peft_config, without_peft_warnings
from ratchet.language_models.engines.tokenizer import ChatTokenizer
from ratchet.models.supervision import TokenSequence
from ratchet.seeding import derive_seed, seeded_globals
from ratchet.service.training.job_folder import (
    MODEL_FOLDER,
    Method,
    TrainingJob,
    TrainingResult,
    begin_attempt,
)
from ratchet.service.training.plan import Plan
from ratchet.service.training.tokens import (
    Preference,
    read_preferences,
    read_supervised,
)
from ratchet.service.training.trl.models import StartModel
from ratchet.service.training.trl.progress import Progress

warnings.simplefilter("ignore", FutureWarning)  # a failed job reports its last lines

_IGNORED = -100
_WARMUP = 5


class PreferenceTrainer(DPOTrainer):
    """TRL's DPO trainer for tokenized pairs, so that both of Ratchet's trainers read files alike.

    All pairs of a step have equal weight, even if its last micro-batch has fewer.
    """

    _pairs_per_part = 0.0

    def _prepare_dataset(self, dataset: Dataset, *_: object) -> Dataset:
        return dataset

    def get_batch_samples(self, *given: Any, **more: Any) -> tuple[list[Any], Any]:  # noqa: ANN401
        """Return the micro-batches of a step; record their mean number of pairs."""
        parts, count = super().get_batch_samples(*given, **more)
        self._pairs_per_part = sum(len(part["input_ids"]) for part in parts) / max(1, len(parts))
        return parts, count

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **more: Any) -> Any:  # noqa: ANN401
        """Weight a micro-batch by its pairs, since TRL averages over micro-batches."""
        found = super().compute_loss(model, inputs, *given, **more)  # type: ignore[no-untyped-call]
        if not model.training:
            return found
        return found * (len(inputs["input_ids"]) / self._pairs_per_part)


def train(folder: Path) -> None:
    """Train a job; see :func:`ratchet.service.training.train.train`."""
    job = begin_attempt(folder)
    plan = Plan.of(job.method, job.hyperparameters)
    start = StartModel.of(job)
    progress = Progress(folder, plan.n_epochs, start.write)
    seed = derive_seed(job.seed, "fine-tuning", purpose="trl")
    with seeded_globals(seed):
        trainer = make_trainer(folder, job, plan, seed % 2**32)
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(progress)
        trainer.train()
        start.write(trainer.model, folder / MODEL_FOLDER)
    steps = len(progress.losses)
    last_epoch = progress.losses[-(steps // plan.n_epochs) :]
    TrainingResult(
        trained_tokens=plan.n_epochs * _count_tokens(trainer.train_dataset),
        steps=steps,
        hyperparameters=plan.as_mapping(),
        train_loss=sum(last_epoch) / len(last_epoch),
        checkpoints=tuple(progress.checkpoints),
    ).write(folder)


def make_trainer(folder: Path, job: TrainingJob, plan: Plan, seed: int) -> SFTTrainer | DPOTrainer:
    """Create the trainer of a job: model, examples and TRL's settings.

    ``seed``, below 2³², seeds the adapter's initial weights, dropout and the examples' order.
    """
    base = Path(job.base_folder)
    model = StartModel.of(job).load_for_training(all_weights=plan.lora.rank == 0)
    chat_tokenizer = ChatTokenizer(base)
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True)
    if tokenizer.pad_token is None:  # padding is never read
        tokenizer.pad_token = chat_tokenizer.token_text(chat_tokenizer.end_ids[0])
    context_length = int(model.config.get_text_config().max_position_embeddings)
    training, validation = (
        None if file is None else _read(job.method, Path(file), chat_tokenizer, context_length)
        for file in (job.training_file, job.validation_file)
    )
    settings: dict[str, Any] = {
        **_settings(plan, len(training or ())),
        "output_dir": str(folder / "trl"),
        "seed": seed,
        "learning_rate": plan.learning_rate(sum(p.numel() for p in model.parameters())),
        "eval_strategy": "no" if validation is None else "epoch",
    }
    parts: dict[str, Any] = {
        "model": model,
        "train_dataset": training,
        "eval_dataset": validation,
        "processing_class": tokenizer,
        "peft_config": peft_config(plan.lora) if plan.lora.rank else None,
    }
    if job.method == "supervised":
        with without_peft_warnings():
            return SFTTrainer(args=SFTConfig(**settings), **parts)
    preferences: dict[str, Any] = {
        "beta": plan.beta,
        "precompute_ref_log_probs": True,  # by the initial model: no second one in memory
        "disable_dropout": plan.lora.dropout == 0,
    }
    with without_peft_warnings():
        return PreferenceTrainer(args=DPOConfig(**settings, **preferences), **parts)


def _settings(plan: Plan, examples: int) -> dict[str, Any]:
    """Return the settings of both of TRL's trainers."""
    on_gpu = torch.cuda.is_available()
    steps = plan.n_epochs * -(-examples // plan.batch_size)
    return {
        "num_train_epochs": plan.n_epochs,
        "per_device_train_batch_size": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.batch_size // plan.micro_batch_size,
        "per_device_eval_batch_size": plan.micro_batch_size,
        "lr_scheduler_type": "linear",
        "warmup_steps": min(_WARMUP, steps // 10),
        "max_length": None,  # longer examples have been refused
        "use_cpu": not on_gpu,
        "bf16": on_gpu and torch.cuda.is_bf16_supported(),
        "gradient_checkpointing": on_gpu,  # memory is the bottleneck on a GPU
        "dataloader_pin_memory": on_gpu,
        "save_strategy": "no",  # its checkpoints hold pickles
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
    }


def _read(method: Method, file: Path, tokenizer: ChatTokenizer, context_length: int) -> Dataset:
    """Read a file into the columns that TRL's collators expect."""
    if method == "supervised":
        chats = read_supervised(file, tokenizer, context_length)
        return Dataset.from_list([_labelled(chat) for chat in chats])
    pairs = read_preferences(file, tokenizer, context_length)
    return Dataset.from_list([_compared(pair) for pair in pairs])


def _labelled(sequence: TokenSequence) -> dict[str, Sequence[int]]:
    labels = [
        token if weight else _IGNORED
        for token, weight in zip(sequence.ids, sequence.weights, strict=True)
    ]
    return {"input_ids": sequence.ids, "labels": labels}


def _compared(pair: Preference) -> dict[str, Sequence[int]]:
    start = pair.preferred.weights.index(1.0)  # both have one prompt
    return {
        "prompt_ids": pair.preferred.ids[:start],
        "chosen_ids": pair.preferred.ids[start:],
        "rejected_ids": pair.non_preferred.ids[start:],
    }


def _count_tokens(examples: Dataset) -> int:
    """Count the tokens of an epoch, including both sides of a pair."""
    if "input_ids" in examples.column_names:
        return sum(map(len, examples["input_ids"]))
    prompts, answers = 2 * sum(map(len, examples["prompt_ids"])), ("chosen_ids", "rejected_ids")
    return prompts + sum(len(ids) for name in answers for ids in examples[name])


if __name__ == "__main__":
    train(Path(sys.argv[1]))
