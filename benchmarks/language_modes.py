"""``mode: one_step_behind`` against ``synchronous``: the same iterations, by the clock on the wall.

Run with ``python benchmarks/language_modes.py``; each round plays both, so that what else the
machine does falls on both. ``staged`` is ``ratchet run`` with a stage for each iteration, from
start to end; ``loop`` the same trainer in a plain loop. A round says how long an iteration plays
and learns, one after the other: what could be had at best is (play + learn) / max(play, learn).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from flows import run_experiment
from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios.building import build_scenario_instance
from trainers.language.trainer import LanguageTrainer
from trainers.registry import trainer_class


def parameters(mode: str, asked: argparse.Namespace) -> HyperParameters:
    """Return the experiment: a small model that answers with a few dozen tokens."""
    content: dict[str, Any] = {
        "scenario": "language_task",
        "dataset": "reverse",
        "trainer": "grpo",
        "rl": {"num_iterations": asked.iterations},
        "language_task": {
            "num_train": 4096,
            "num_test": 8,
            "reverse": {"length": asked.length, "num_symbols": 8},
            "evaluator": "partial",
        },
        "agents": {
            "_default": {
                "max_tokens": asked.length + 2,
                "small_model": {
                    "d_model": asked.d_model,
                    "layers": asked.layers,
                    "heads": 4,
                    "context_length": 128,
                },
                "warm_up": {"num_steps": 20, "batch_size": 8},
            }
        },
        "language": {
            "mode": mode,
            "tasks_per_step": asked.tasks,
            "group_size": 8,
            "num_epochs": asked.epochs,
            "optimizer": {"lr": 1e-4},
        },
    }
    return HyperParameters(**content)


def trainer_of(mode: str, asked: argparse.Namespace) -> LanguageTrainer:
    """Build the trainer of a plain loop."""
    hyper_params = parameters(mode, asked)
    settings = ExperimentSettings(progress="none")
    found = trainer_class(hyper_params)
    instance = build_scenario_instance(hyper_params, settings, trainer_type=found.trainer_type)
    trainer = found(hyper_params, instance, settings)
    assert isinstance(trainer, LanguageTrainer)
    trainer.initial_state()
    return trainer


def shares(asked: argparse.Namespace) -> tuple[float, float]:
    """Return the seconds in which an iteration is played and learned from, one after the other."""
    trainer = trainer_of("synchronous", asked)
    trainer.run_iterations(0, 1)
    playing = learning = 0.0
    for iteration in (1, 2, 3):
        begin = time.perf_counter()
        trainer.give_rollouts(iteration, trainer.play_rollouts(iteration))
        between = time.perf_counter()
        trainer.run_iterations(iteration, iteration + 1)
        playing += (between - begin) / 3
        learning += (time.perf_counter() - between) / 3
    return playing, learning


def loop(mode: str, asked: argparse.Namespace) -> float:
    """Return the seconds of a plain loop after its first iteration, which starts the process."""
    trainer = trainer_of(mode, asked)
    trainer.plays_beside_after = 0.0
    trainer.run_iterations(0, 1)
    begin = time.perf_counter()
    trainer.run_iterations(1, asked.iterations)
    spent = time.perf_counter() - begin
    trainer.close()
    return spent


def staged(mode: str, asked: argparse.Namespace) -> float:
    """Return the seconds of a run, from its start to its end."""
    with tempfile.TemporaryDirectory() as name:
        settings = ExperimentSettings(
            home=str(Path(name) / "home"),
            runs=str(Path(name) / "runs"),
            iterations_per_task=1,
            tracking=False,
            progress="none",
        )
        begin = time.perf_counter()
        run_experiment(parameters(mode, asked), settings)
        return time.perf_counter() - begin


def main() -> None:
    """Play the rounds and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    given = {"rounds": 3, "iterations": 20, "length": 48, "d_model": 128, "layers": 4}
    for option, value in {**given, "tasks": 12, "epochs": 1}.items():
        parser.add_argument(f"--{option.replace('_', '-')}", type=int, default=value)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    table = Table("", "play", "learn", "at best", "synchronous", "one step behind", "×", "load")
    for number in range(asked.rounds):
        playing, learning = shares(asked)
        best = (playing + learning) / max(playing, learning)
        for name, measure in {"loop": loop, "staged": staged}.items():
            load = os.getloadavg()[0]
            seconds = [measure(mode, asked) for mode in ("synchronous", "one_step_behind")]
            figures = (playing, learning, best, *seconds, seconds[0] / seconds[1], load)
            table.add_row(f"{name} {number + 1}", *(f"{figure:.2f}" for figure in figures))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
