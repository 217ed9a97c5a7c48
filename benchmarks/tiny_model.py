"""Ratchet's base model: generation against transformers, training against TRL.

Both do the same work in turns in one process on one thread: the same prompts and number of new
tokens; the same examples, batches, epochs and optimizer. Then complete jobs, from file to written
model, train all weights or an adapter of the base model and of one a hundred times as large, and
each in a new process. Requires the extra ``peers``. Run with
``python benchmarks/tiny_model.py [HOME]``; if HOME has no base model, it is built first.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
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
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from ratchet.language_models.engines.interface import GenerationRequest
from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.scenarios.code_validation.tiny_model.build import ensure_base_model
from ratchet.scenarios.code_validation.tiny_model.corpus import expert_system
from ratchet.scenarios.code_validation.tiny_model.players import Skill, argue, draw_exercise
from ratchet.service.training import train as training
from ratchet.service.training.job_folder import Method, TrainingJob

ROUNDS = 3
REQUESTS = 128
NEW_TOKENS = 24
EXAMPLES = 128
EPOCHS = 3
BATCH_SIZE = 16
LORA_RANK = 4
LARGER_EXAMPLES = 64
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
            f"generate, batch of {REQUESTS} prompts": _generation(folder),
            f"supervised, {EXAMPLES} chats, {EPOCHS} epochs": _supervised(folder, Path(work)),
            f"dpo, {EXAMPLES} pairs, {EPOCHS} epochs": _dpo(folder, Path(work)),
        }
        table = Table("work", "Ratchet, CPU s", "peer, CPU s", "ratio: median (range)")
        for name, (ours, theirs) in pairs.items():
            table.add_row(name, *_compare(ours, theirs))
        Console().print(table)
        Console().print(_trainers(folder, Path(work)))


def _compare(ours: Callable[[], None], theirs: Callable[[], None]) -> tuple[str, str, str]:
    """Run both in turns, after a warm-up run of each."""
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
    """Build two functions that sample at most ``NEW_TOKENS`` from the same prompts."""
    rng = np.random.default_rng(0)
    prompts = [(expert_system(draw_exercise(rng), "accept"),) for _ in range(REQUESTS)]
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
    lines = _chats(EXAMPLES)
    ours = [{"messages": [*line["prompt"], *line["completion"]]} for line in lines]

    def theirs() -> None:
        trainer = SFTTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder),
            args=SFTConfig(output_dir=str(work / "trl"), **TRL_ARGUMENTS),
            train_dataset=Dataset.from_list(lines),
            processing_class=AutoTokenizer.from_pretrained(folder),
        )
        trainer.train()

    return _plain_job(folder, work / "sft", "supervised", ours), theirs


def _chats(count: int) -> list[dict[str, Any]]:
    """Return experts' arguments in TRL's format."""
    rng = np.random.default_rng(1)
    lines = []
    for _ in range(count):
        game = draw_exercise(rng)
        reply = f"Argument:\n{argue(rng, game, Skill((0.0,), 1.0))}"
        lines.append(
            {"prompt": [expert_system(game, "accept").to_dict()], "completion": [_assistant(reply)]}
        )
    return lines


def _dpo(folder: Path, work: Path) -> tuple[Callable[[], None], Callable[[], None]]:
    rng = np.random.default_rng(2)
    lines = []
    for _ in range(EXAMPLES):
        game = draw_exercise(rng)
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

    return _plain_job(folder, work / "dpo", "dpo", ours), theirs


def _plain_job(
    base: Path, folder: Path, method: Method, lines: list[dict[str, Any]]
) -> Callable[[], None]:
    """Build a function that runs a complete job: read the file, train, write weights."""
    _job(base, folder, method, lines, n_epochs=EPOCHS, batch_size=BATCH_SIZE)
    return lambda: training.train(folder)


def _job(
    base: Path, folder: Path, method: Method, lines: list[dict[str, Any]], **values: int
) -> None:
    folder.mkdir()
    file = folder / "examples.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    TrainingJob("job", method, str(base), str(file), None, values, 0).write(folder)


def _trainers(folder: Path, work: Path) -> Table:
    """Return the CPU-seconds of complete jobs."""
    larger = _larger_model(folder, work / "larger")
    num_parameters = (larger / "model.safetensors").stat().st_size // 4
    table = Table("a supervised job, CPU s", "all weights", f"LoRA of rank {LORA_RANK}")
    for name, base, examples, epochs in (
        ("base model", folder, EXAMPLES, EPOCHS),
        (f"{num_parameters / 1e6:.0f} M parameters", larger, LARGER_EXAMPLES, 1),
    ):
        jobs = _jobs(base, work / f"jobs-{base.name}", examples, epochs)
        runs = [lambda j=job: training.train(j) for job in jobs]
        for run in runs:
            run()
        times = [[_seconds(run) for run in runs] for _ in range(ROUNDS)]
        table.add_row(name, *(f"{statistics.median(t):.2f}" for t in zip(*times, strict=True)))
        if base == folder:
            fresh = [_fresh_seconds(job) for job in jobs]
            table.add_row("base model, in a new process", *(f"{t:.2f}" for t in fresh))
    return table


def _jobs(base: Path, folder: Path, examples: int, epochs: int) -> list[Path]:
    """Write one job for each column of the table."""
    lines = [{"messages": [*c["prompt"], *c["completion"]]} for c in _chats(examples)]
    values = {"n_epochs": epochs, "batch_size": BATCH_SIZE}
    folder.mkdir()
    job_folders = []
    for name, more in (("whole", {}), ("lora", {"lora_rank": LORA_RANK})):
        _job(base, folder / name, "supervised", lines, **values, **more)
        job_folders.append(folder / name)
    return job_folders


def _larger_model(base: Path, folder: Path) -> Path:
    """Write a larger random Llama with the base model's tokenizer."""
    config = LlamaConfig.from_pretrained(base)
    config.update({"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6})
    config.update({"head_dim": 96})
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(base / name, folder / name)
    return folder


def _fresh_seconds(job: Path) -> float:
    command = [sys.executable, "-m", "ratchet.service.training.train", str(job)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


if __name__ == "__main__":
    main()
