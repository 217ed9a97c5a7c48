"""Time and memory of training one model in several processes.

Run it with ``python benchmarks/shared_model.py [--processes 2]``. GRPO iterations on the same
completions, with a small model and one of 12 layers, which transformers runs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from omegaconf import OmegaConf

from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.local.loading import load_language_model
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from ratchet.rollouts.trajectory import Trajectory
from trainers.language.grpo import GrpoTrainer

SHAPES = {
    "small": SmallModelShape(d_model=64, layers=2, heads=4, context_length=128),
    "large": SmallModelShape(d_model=640, layers=12, heads=10, d_mlp=1792, context_length=128),
}
GROUPS, GROUP_SIZE, PROMPT, ANSWER = 4, 8, 32, 32
MEBIBYTE = 2**20


def answers(vocabulary: int, seed: int) -> list[Trajectory]:
    """Build random completions of random prompts."""
    rng = np.random.default_rng(seed)
    trajectories = []
    for group in range(GROUPS):
        prompt = rng.integers(7, vocabulary, PROMPT).tolist()
        for _ in range(GROUP_SIZE):
            trajectories.append(
                Trajectory(
                    tokens=[*prompt, *rng.integers(7, vocabulary, ANSWER).tolist()],
                    loss_mask=[0] * PROMPT + [1] * ANSWER,
                    logprobs=[0.0] * PROMPT + [-2.0] * ANSWER,
                    reward=float(rng.random()),
                    group_id=str(group),
                    run_id=str(len(trajectories)),
                )
            )
    return trajectories


def measure(folder: Path, processes: int, rounds: int) -> None:
    """Print wall and CPU time of an iteration, and the memory of each process."""
    trainer = GrpoTrainer(
        OmegaConf.create(
            {
                "train_service": {"world_size": processes},
                "micro_batch_size": 8,
                "max_tokens": ANSWER,
            }
        )
    )
    model = load_language_model(folder, base_dir=Path())
    trainer.connect(model, InProcessEngine(model))
    played = [answers(len(model.tokenizer.vocabulary), seed) for seed in range(rounds + 1)]
    begin = time.perf_counter()
    trainer.train(played[0])
    first = time.perf_counter() - begin
    ranks = [] if trainer._ranks is None else trainer._ranks.pids
    everyone = [psutil.Process(), *map(psutil.Process, ranks)]
    walls, cpus = [], []
    for each in played[1:]:
        began = time.perf_counter(), sum(sum(p.cpu_times()[:2]) for p in everyone)
        trainer.train(each)
        walls.append(time.perf_counter() - began[0])
        cpus.append(sum(sum(p.cpu_times()[:2]) for p in everyone) - began[1])
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    held = [weights] if trainer._ranks is None else trainer._ranks.held_bytes
    resident = [p.memory_info().rss / MEBIBYTE for p in everyone]
    print(
        f"{folder.name}, {processes} processes: first {first:.1f} s, then"
        f" {statistics.median(walls):.3f} s ({min(walls):.3f} to {max(walls):.3f}) and"
        f" {statistics.median(cpus):.2f} CPU-seconds per iteration; weights"
        f" {[f'{each / MEBIBYTE:.1f}' for each in held]} MiB, resident"
        f" {[f'{each:.0f}' for each in resident]} MiB"
    )
    trainer.close()


def main() -> None:
    """Measure both models with one process and with several."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        for name, shape in SHAPES.items():
            folder = Path(root) / name
            make_small_model(folder, alphabet="0123456789abcdef", shape=shape)
            for processes in (1, options.processes):
                measure(folder, processes, options.rounds)


if __name__ == "__main__":
    main()
