"""Time and memory of training one model in several processes.

Run it with ``python benchmarks/shared_model.py [--processes 2]``. GRPO
iterations with a small model, and with one of 12 layers, which transformers runs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import torch
from omegaconf import OmegaConf

from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import Completion, SampleRequest
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


def requests_of(vocabulary: int, seed: int) -> list[SampleRequest]:
    """Build requests of completions of random prompts."""
    rng = np.random.default_rng(seed)
    prompts = [tuple(rng.integers(7, vocabulary, PROMPT).tolist()) for _ in range(GROUPS)]
    return [
        SampleRequest(prompt, ANSWER, seed=GROUP_SIZE * group + number)
        for group, prompt in enumerate(prompts)
        for number in range(GROUP_SIZE)
    ]


def trajectories_of(
    requests: list[SampleRequest], completions: list[Completion]
) -> list[Trajectory]:
    """Give random rewards to completions."""
    rng = np.random.default_rng(0)
    return [
        Trajectory(
            tokens=[*request.prompt, *completion.tokens],
            loss_mask=[0] * PROMPT + [1] * len(completion.tokens),
            logprobs=[0.0] * PROMPT + list(completion.log_probs),
            reward=float(rng.random()),
            group_id=str(number // GROUP_SIZE),
            run_id=str(number),
        )
        for number, (request, completion) in enumerate(zip(requests, completions, strict=True))
    ]


def processes_of(trainer: GrpoTrainer) -> list[psutil.Process]:
    """Return this process and the ranks."""
    ranks = [] if trainer._ranks is None else trainer._ranks.pids
    return [psutil.Process(), *map(psutil.Process, ranks)]


@contextmanager
def measured(trainer: GrpoTrainer, used: list[tuple[float, float]]) -> Iterator[None]:
    """Append the wall and CPU seconds of a block; CPU seconds without those of a start."""
    everyone = processes_of(trainer)
    wall, cpu = time.perf_counter(), sum(sum(p.cpu_times()[:2]) for p in everyone)
    yield
    cpu = sum(sum(p.cpu_times()[:2]) for p in everyone) - cpu
    used.append((time.perf_counter() - wall, cpu))


def measure(folder: Path, processes: int, rounds: int) -> None:
    """Print wall and CPU time of sampling and of training, and the memory of each process."""
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
    size = len(model.tokenizer.vocabulary)
    used: dict[str, list[tuple[float, float]]] = {"sampling": [], "training": []}
    for seed in range(rounds + 1):
        requests = requests_of(size, seed)
        with measured(trainer, used["sampling"]):
            completions = trainer.engine.generate(requests)
        with measured(trainer, used["training"]):
            trainer.train(trajectories_of(requests, completions))
    everyone = processes_of(trainer)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    held = [weights] if trainer._ranks is None else trainer._ranks.held_bytes
    resident = [p.memory_info().rss / MEBIBYTE for p in everyone]
    print(
        f"{folder.name}, {processes} processes: weights"
        f" {[f'{each / MEBIBYTE:.1f}' for each in held]} MiB, resident"
        f" {[f'{each:.0f}' for each in resident]} MiB"
    )
    for work, pairs in used.items():
        walls, cpus = zip(*pairs[1:], strict=True)  # the first starts processes
        print(
            f"  {work}: first {pairs[0][0]:.1f} s, then {statistics.median(walls):.3f} s"
            f" ({min(walls):.3f} to {max(walls):.3f}) and"
            f" {statistics.median(cpus):.2f} CPU-seconds"
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
