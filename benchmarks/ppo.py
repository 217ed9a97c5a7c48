"""How many frames per CPU-second PPO trains on, and where the time goes.

Run with ``python benchmarks/ppo.py [--iterations N]``. Two settings: the default networks on nip,
and small ones on adp. CPU time of this process on one thread; the first iteration is a warm-up.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer
from trainers.tensordict import rl
from trainers.tensordict.fused_adam import clip_gradients
from trainers.tensordict.rl import TensorDictRlTrainer

COMMON: dict[str, Any] = {
    "scenario": "graph_isomorphism",
    "trainer": "vanilla_ppo",
    "dataset": "generated",
    "graph_isomorphism": {"num_pairs": 1000},
}
SETTINGS: dict[str, tuple[float, dict[str, Any]]] = {
    "nip, default networks, 1,000 frames, minibatch 64": (
        500,
        {"rl": {"frames_per_batch": 1000, "minibatch_size": 64}},
    ),
    "adp, small networks, 512 frames, minibatch 128": (
        2200,
        {
            "interaction_protocol": "adp",
            "rl": {"frames_per_batch": 512, "minibatch_size": 128},
            "agents": {
                "_default": {"num_transformer_layers": 1, "use_dual_gnn": False},
                "verifier": {"num_gnn_layers": 2},
                "prover": {"num_gnn_layers": 5},
            },
        },
    ),
}


class Stopwatch:
    """Adds up the CPU time spent in wrapped functions."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Time a function under a name."""

        def timed(*args: object, **kwargs: object) -> object:
            with self.running(name):
                return function(*args, **kwargs)

        return timed

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Time a block under a name."""
        start = time.process_time()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start


def watch(trainer: TensorDictRlTrainer) -> Stopwatch:
    """Time the phases of an iteration."""
    watch = Stopwatch()
    parts = trainer.components
    parts.collector.collect = watch.wrap("rollout", parts.collector.collect)  # type: ignore[method-assign]
    parts.loss_module.forward = watch.wrap("forward", parts.loss_module.forward)  # type: ignore[method-assign]
    if parts.gae is not None:
        parts.gae.forward = watch.wrap("GAE", parts.gae.forward)  # type: ignore[method-assign]
    parts.optimizer.step = watch.wrap("optimizer", parts.optimizer.step)  # type: ignore[method-assign]
    trainer._take_step = watch.wrap("step", trainer._take_step)  # type: ignore[method-assign]
    trainer._get_log_stats = watch.wrap("statistics", trainer._get_log_stats)  # type: ignore[method-assign]
    rl.clip_gradients = watch.wrap("clipping", clip_gradients)  # type: ignore[attr-defined]
    return watch


def measure(name: str, iterations: int) -> None:
    """Run one setting and print its line and its phases."""
    bar, changes = SETTINGS[name]
    hyper_params = HyperParameters(**{**COMMON, **changes})
    settings = ExperimentSettings()
    scenario = build_scenario_instance(hyper_params, settings)
    trainer = build_trainer(hyper_params, scenario, settings)
    assert isinstance(trainer, TensorDictRlTrainer)
    trainer.initial_state()
    trainer.run_iterations(0, 1)
    frames = scenario.train_environment.frames_per_batch
    rates = []
    for iteration in range(1, iterations + 1):
        start = time.process_time()
        trainer.run_iterations(iteration, iteration + 1)
        rates.append(frames / (time.process_time() - start))
    stopwatch = watch(trainer)
    trainer.run_iterations(iterations + 1, iterations + 2)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rate = statistics.median(rates)
    print(f"{name:52s} {rate:8.0f} {min(rates):8.0f} {bar:6.0f} {rate / bar:6.2f} {memory:8.0f}")
    seconds = stopwatch.seconds
    seconds["backward"] = seconds.pop("step") - seconds["optimizer"] - seconds["clipping"]
    shown = ", ".join(f"{phase} {1000 * s:.0f}" for phase, s in seconds.items())
    print(f"    ms of one iteration: {shown}")


def main() -> None:
    """Measure every setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    heads = f"{'median':>8s} {'worst':>8s} {'bar':>6s} {'ratio':>6s} {'MiB':>8s}"
    print(f"{'frames per CPU-second':52s} {heads}")
    for name in SETTINGS:
        rl.clip_gradients = clip_gradients  # type: ignore[attr-defined]
        measure(name, arguments.iterations)


if __name__ == "__main__":
    main()
