"""The frames per CPU-second that PPO trains on, and where the time goes.

Run with ``python benchmarks/ppo.py [--iterations N]``. Two settings: the default networks on nip,
and small ones on adp. CPU time of this process on one thread; the first iteration is a warm-up.
The bars stem from a certain machine; what plain bodies take, measured before each iteration,
tells how much slower this one is at that moment.
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
from dataclasses import dataclass
from typing import Any

import torch
from plain_body import DEEP_BODY, DEFAULT_BODY, SHALLOW_BODY, BodyPass

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer
from trainers.tensordict import rl
from trainers.tensordict.optimization.fused_adam import clip_gradients
from trainers.tensordict.rl import TensorDictRlTrainer

COMMON: dict[str, Any] = {
    "scenario": "graph_isomorphism",
    "trainer": "vanilla_ppo",
    "dataset": "generated",
    "graph_isomorphism": {"num_pairs": 1000},
}
PASSES = 5
"""Passes of each plain body between two iterations."""
REFERENCE_MS = {DEFAULT_BODY: 17.4, DEEP_BODY: 12.4, SHALLOW_BODY: 9.1}
"""What a plain pass takes on the machine that the bars come from.

Measured there were 20, 14 and 10; plain passes have since come to 0.87, 0.89 and 0.91 of that.
"""


@dataclass(frozen=True)
class Setting:
    """What is trained, how fast it has to be there, and the bodies that are its own."""

    name: str
    bar: float
    bodies: tuple[str, ...]
    changes: dict[str, Any]


SETTINGS = (
    Setting(
        "nip, default networks, 1,000 frames, minibatch 64",
        500,
        (DEFAULT_BODY,),
        {"rl": {"frames_per_batch": 1000, "minibatch_size": 64}},
    ),
    Setting(
        "adp, small networks, 512 frames, minibatch 128",
        2200,
        (DEEP_BODY, SHALLOW_BODY),
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
)


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
    parts.loss_module.compute_gradients = watch.wrap(  # type: ignore[method-assign]
        "gradients", parts.loss_module.compute_gradients
    )
    trainer._get_log_stats = watch.wrap("statistics", trainer._get_log_stats)  # type: ignore[method-assign]
    rl.clip_gradients = watch.wrap("clipping", clip_gradients)  # type: ignore[attr-defined]
    return watch


class Training:
    """One setting, trained iteration by iteration."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        hyper_params = HyperParameters(**{**COMMON, **setting.changes})
        settings = ExperimentSettings()
        scenario = build_scenario_instance(hyper_params, settings)
        trainer = build_trainer(hyper_params, scenario, settings)
        assert isinstance(trainer, TensorDictRlTrainer)
        self.trainer = trainer
        self.frames = scenario.train_environment.frames_per_batch
        self.iteration = 0
        self.rates: list[float] = []
        """Frames per CPU-second."""
        self.by_default_body: list[float] = []
        """The same where the default body's plain pass takes what it takes at the bars' place."""
        self.by_own_bodies: list[float] = []
        trainer.initial_state()
        self.run()

    def run(self) -> float:
        """Run an iteration and return its frames per CPU-second."""
        start = time.process_time()
        self.trainer.run_iterations(self.iteration, self.iteration + 1)
        self.iteration += 1
        return self.frames / (time.process_time() - start)

    def measure(self, slowness: dict[str, float]) -> None:
        """Run an iteration, given how many times slower than there each plain body is now."""
        rate = self.run()
        own = statistics.mean(slowness[body] for body in self.setting.bodies)
        self.rates.append(rate)
        self.by_default_body.append(rate * slowness[DEFAULT_BODY])
        self.by_own_bodies.append(rate * own)

    def report(self) -> None:
        """Print the line of this setting, and its phases."""
        columns = (self.rates, self.by_default_body, self.by_own_bodies)
        shown = "".join(f"{statistics.median(c):8.0f} {min(c):6.0f}" for c in columns)
        print(f"{self.setting.name:50s}{shown} {self.setting.bar:8.0f}")
        stopwatch = watch(self.trainer)
        self.run()
        seconds = stopwatch.seconds
        seconds["backward"] = seconds.pop("gradients") - seconds["forward"]
        phases = ", ".join(f"{phase} {1000 * s:.0f}" for phase, s in seconds.items())
        print(f"    ms of one iteration: {phases}")


def main() -> None:
    """Measure every setting, in turn with the plain bodies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bodies = {name: BodyPass(name) for name in REFERENCE_MS}
    trainings = [Training(setting) for setting in SETTINGS]

    def slowness() -> dict[str, float]:
        plain = {name: body.median_ms(PASSES, fast=False) for name, body in bodies.items()}
        seen.append(plain)
        return {name: plain[name] / REFERENCE_MS[name] for name in plain}

    seen: list[dict[str, float]] = []
    slowness()
    for _ in range(arguments.iterations):
        for training in trainings:
            training.measure(slowness())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("plain passes, ms (where the bars come from):")
    for name, there in REFERENCE_MS.items():
        print(f"    {name:50s} {statistics.median(ms[name] for ms in seen):6.1f} ({there:.1f})")
    print("frames per CPU-second: median and worst; here, and there by the default body's pace")
    print("and by that of the setting's own bodies; bar")
    for training in trainings:
        training.report()
    print(f"peak memory {memory:.0f} MiB")


if __name__ == "__main__":
    main()
