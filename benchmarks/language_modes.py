"""Wall time of ``mode: one_step_behind`` and ``synchronous`` for the same iterations.

Run with ``python benchmarks/language_modes.py``. It first times runs with one stage per iteration,
from the end of the first iteration to the end of the last. Then both modes take turns in plain
loops, a few iterations each, so that other load on the machine affects both. ``busy`` is the CPU
time of the busiest process: about the wall time on two idle cores.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import torch

from flows import run_experiment
from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios.registry import build_scenario_instance
from ratchet.store.store import StageStore
from ratchet.tracking.run_folder import RunFolder
from trainers.language.trainer import LanguageTrainer
from trainers.registry import trainer_class

MODES = ("synchronous", "one_step_behind")


def parameters(mode: str, options: argparse.Namespace) -> HyperParameters:
    """Return the experiment: a small model with completions of a few dozen tokens."""
    content: dict[str, Any] = {
        "scenario": "language_task",
        "dataset": "reverse",
        "trainer": "grpo",
        "rl": {"num_iterations": options.staged},
        "language_task": {
            "num_train": 4096,
            "num_test": 8,
            "reverse": {"length": options.length, "num_symbols": 8},
            "evaluator": "partial",
        },
        "agents": {
            "_default": {
                "max_tokens": options.length + 2,
                "small_model": {
                    "d_model": options.d_model,
                    "layers": options.layers,
                    "heads": 4,
                    "context_length": 128,
                },
                "warm_up": {"num_steps": 20, "batch_size": 8},
            }
        },
        "language": {
            "mode": mode,
            "tasks_per_step": options.tasks,
            "group_size": 8,
            "num_epochs": options.epochs,
            "optimizer": {"lr": 1e-4},
        },
    }
    return HyperParameters(**content)


def trainer_of(mode: str, options: argparse.Namespace) -> LanguageTrainer:
    """Build the trainer of a plain loop."""
    hyper_params = parameters(mode, options)
    settings = ExperimentSettings(progress="none")
    kind = trainer_class(hyper_params)
    instance = build_scenario_instance(hyper_params, settings, trainer_type=kind.trainer_type)
    trainer = kind(hyper_params, instance, settings)
    assert isinstance(trainer, LanguageTrainer)
    trainer.initial_state()
    return trainer


class Loop:
    """Trainer in a plain loop, run a few iterations at a time."""

    def __init__(self, mode: str, options: argparse.Namespace) -> None:
        self.trainer = trainer_of(mode, options)
        self.trainer.plays_beside_after = 0.0
        self.trainer.run_iterations(0, 1)  # starts the rollout process

    def go_on(self, iterations: int) -> tuple[float, float]:
        """Return the seconds per iteration: wall time, and CPU time of the busiest process."""
        begin, main_cpu, rollout_cpu = time.perf_counter(), time.process_time(), self._beside()
        done = self.trainer.iteration
        self.trainer.run_iterations(done, done + iterations)
        busy = max(time.process_time() - main_cpu, self._beside() - rollout_cpu)
        return (time.perf_counter() - begin) / iterations, busy / iterations

    def _beside(self) -> float:
        pids = [child.pid for child in psutil.Process().children()]
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def shares(trainer: LanguageTrainer) -> tuple[float, float]:
    """Return the CPU-seconds of an iteration's rollouts and of its update."""
    iteration = trainer.iteration
    begin = time.process_time()
    trainer.give_rollouts(iteration, trainer.play_rollouts(iteration))
    between = time.process_time()
    trainer.run_iterations(iteration, iteration + 1)
    return between - begin, time.process_time() - between


def staged(mode: str, options: argparse.Namespace) -> float:
    """Return the seconds of a run between the ends of its first and last iteration."""
    with tempfile.TemporaryDirectory() as name:
        settings = ExperimentSettings(
            home=str(Path(name) / "home"),
            runs=str(Path(name) / "runs"),
            iterations_per_task=1,
            tracking=False,
            progress="none",
        )
        result = run_experiment(parameters(mode, options), settings)
        store = StageStore(Path(name) / "home" / "store")
        stages = RunFolder(result.folder).manifest.stages
        keys = [each.key for each in stages if each.stage == "train"]
        manifests = [manifest for key in keys if (manifest := store.find(key)) is not None]
        ends = sorted(datetime.fromisoformat(manifest.created) for manifest in manifests)
        return (ends[-1] - ends[0]).total_seconds()


def main() -> None:
    """Run the rounds and print the times of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    defaults = {
        "rounds": 8,
        "iterations": 5,
        "staged": 30,
        "length": 48,
        "d_model": 128,
        "layers": 4,
    }
    for option, value in {**defaults, "tasks": 12, "epochs": 1}.items():
        parser.add_argument(f"--{option.replace('_', '-')}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"staged, {options.staged} iterations, load {os.getloadavg()[0]:.1f}")
    seconds = {mode: staged(mode, options) for mode in MODES}
    print({mode: f"{each:.1f} s" for mode, each in seconds.items()}, _ratio(*seconds.values()))
    loops = {mode: Loop(mode, options) for mode in MODES}
    playing, learning = shares(loops[MODES[0]].trainer)
    print(f"synchronous: rollouts {playing:.2f}, update {learning:.2f} CPU-seconds per iteration")
    for _ in range(options.rounds):
        load = os.getloadavg()[0]
        (wall, busy), (other_wall, other_busy) = (
            loops[mode].go_on(options.iterations) for mode in MODES
        )
        print(
            f"wall {wall:.2f} and {other_wall:.2f}: {_ratio(wall, other_wall)};"
            f" busy {busy:.2f} and {other_busy:.2f}: {_ratio(busy, other_busy)}; load {load:.1f}",
            flush=True,
        )
    for each in loops.values():
        each.trainer.close()


def _ratio(synchronous: float, one_step_behind: float) -> str:
    return f"{synchronous / one_step_behind:.2f} ×"


if __name__ == "__main__":
    main()
