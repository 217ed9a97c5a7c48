"""What plain torch gains on the base model: generation beside transformers, training beside TRL.

All do the same work in one process and one thread, in turns: the same prompts and number of new
tokens; the same examples, batches, epochs and optimizer. Needs ``trl`` and ``datasets``. Run with
``python benchmarks/tiny_model.py [HOME]``; without a home in which the base model lies, it is made.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from ratchet.language_models.service import training
from ratchet.language_models.service.base_model.build import ensure_base_model
from ratchet.language_models.service.base_model.corpus import expert_system
from ratchet.language_models.service.base_model.players import Skill, argue, draw_game
from ratchet.language_models.service.engine import GenerationRequest
from ratchet.language_models.service.torch_engine import TorchEngine
from ratchet.language_models.service.training_job import Method, TrainingJob

ROUNDS = 3
REQUESTS = 128
NEW_TOKENS = 24
EXAMPLES = 128
EPOCHS = 3
BATCH_SIZE = 16
TRL_ARGUMENTS: dict[str, Any] = {
    "num_train_epochs": EPOCHS,
    "per_device_train_batch_size": BATCH_SIZE,
    "learning_rate": 1e-3,
    "max_length": 512,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": [],
    "save_strategy": "no",
    "logging_strategy": "no",
    "disable_tqdm": True,
}


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as work:
        folder = ensure_base_model(Path(sys.argv[1] if len(sys.argv) > 1 else work))
        pairs = {
            f"generate, {REQUESTS} prompts at once": _generation(folder),
            f"supervised, {EXAMPLES} chats, {EPOCHS} epochs": _supervised(folder, Path(work)),
            f"dpo, {EXAMPLES} pairs, {EPOCHS} epochs": _dpo(folder, Path(work)),
        }
        table = Table("work", "Ratchet, CPU s", "theirs, CPU s", "ratio: median (range)")
        for name, (ours, theirs) in pairs.items():
            table.add_row(name, *_compare(ours, theirs))
    Console().print(table)


def _compare(ours: Callable[[], None], theirs: Callable[[], None]) -> tuple[str, str, str]:
    """Run both in turns, after once to warm up."""
    ours()
    theirs()
    times = [(_seconds(ours), _seconds(theirs)) for _ in range(ROUNDS)]
    ratios = [b / a for a, b in times]
    medians = [f"{statistics.median(column):.2f}" for column in zip(*times, strict=True)]
    spread = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"
    return medians[0], medians[1], spread


def _seconds(run: Callable[[], None]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def _generation(folder: Path) -> tuple[Callable[[], None], Callable[[], None]]:
    """The same prompts; sampled at temperature 1, to ``NEW_TOKENS`` at most."""
    rng = np.random.default_rng(0)
    prompts = [(expert_system(draw_game(rng), "accept"),) for _ in range(REQUESTS)]
    engine = TorchEngine()
    engine.load("m", folder)
    requests = [
        GenerationRequest("m", p, seed, max_tokens=NEW_TOKENS) for seed, p in enumerate(prompts)
    ]
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder)
    chats = [[message.to_dict() for message in prompt] for prompt in prompts]

    def ours() -> None:
        engine.generate(requests)

    def theirs() -> None:
        inputs = tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, return_tensors="pt", padding=True, return_dict=True
        )
        output = model.generate(**inputs, do_sample=True, max_new_tokens=NEW_TOKENS)
        tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)

    return ours, theirs


def _supervised(folder: Path, work: Path) -> tuple[Callable[[], None], Callable[[], None]]:
    rng = np.random.default_rng(1)
    lines = []
    for _ in range(EXAMPLES):
        game = draw_game(rng)
        reply = f"Argument:\n{argue(rng, game, Skill((0.0,), 1.0))}"
        lines.append(
            {"prompt": [expert_system(game, "accept").to_dict()], "completion": [_assistant(reply)]}
        )
    ours = [{"messages": [*line["prompt"], *line["completion"]]} for line in lines]

    def theirs() -> None:
        trainer = SFTTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder),
            args=SFTConfig(output_dir=str(work / "trl"), **TRL_ARGUMENTS),
            train_dataset=Dataset.from_list(lines),
            processing_class=AutoTokenizer.from_pretrained(folder),
        )
        trainer.train()

    return _job(folder, work / "sft", "supervised", ours), theirs


def _dpo(folder: Path, work: Path) -> tuple[Callable[[], None], Callable[[], None]]:
    rng = np.random.default_rng(2)
    lines = []
    for _ in range(EXAMPLES):
        game = draw_game(rng)
        good, poor = (f"Argument:\n{argue(rng, game, Skill((e,), 1.0))}" for e in (0.0, 0.5))
        prompt = [expert_system(game, "accept").to_dict()]
        lines.append(
            {"prompt": prompt, "chosen": [_assistant(good)], "rejected": [_assistant(poor)]}
        )
    ours = [
        {
            "input": {"messages": line["prompt"]},
            "preferred_output": line["chosen"],
            "non_preferred_output": line["rejected"],
        }
        for line in lines
    ]

    def theirs() -> None:
        trainer = DPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder),
            args=DPOConfig(output_dir=str(work / "trl"), beta=0.1, **TRL_ARGUMENTS),
            train_dataset=Dataset.from_list(lines),
            processing_class=AutoTokenizer.from_pretrained(folder),
        )
        trainer.train()

    return _job(folder, work / "dpo", "dpo", ours), theirs


def _job(
    base: Path, folder: Path, method: Method, lines: list[dict[str, Any]]
) -> Callable[[], None]:
    """A whole job of ours: reading the file, training, writing weights."""
    folder.mkdir()
    file = folder / "examples.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    values = {"n_epochs": EPOCHS, "batch_size": BATCH_SIZE}
    TrainingJob("job", method, str(base), str(file), None, values, 0).write(folder)
    return lambda: training.train(folder)


def _assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


if __name__ == "__main__":
    main()
