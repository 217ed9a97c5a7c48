"""PPO's frames per CPU-second, with the time of each phase.

Run with ``python benchmarks/ppo.py [--iterations N]``. Two settings: the default networks on nip,
and small ones on adp. CPU time of this process on one thread; the first iteration is a warm-up.
Targets refer to a reference machine. Forward and backward passes of network bodies without fast
path, timed before each iteration, measure the current slowdown relative to it.
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

from ratchet import ExperimentSettings, HyperParameters
from ratchet.fast.adam import clip_gradients
from ratchet.fast.dispatch import only_plain_operations
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer
from trainers.tensordict import rl
from trainers.tensordict.rl import TensorDictRlTrainer

COMMON: dict[str, Any] = {
    "scenario": "graph_isomorphism",
    "trainer": "vanilla_ppo",
    "dataset": "generated",
    "graph_isomorphism": {"num_pairs": 1000},
}
SMALL = {"use_dual_gnn": False, "num_transformer_layers": 1}
DEFAULT_BODY = "default body, minibatch 64"
DEEP_BODY = "5 GNN layers, 1 transformer layer, minibatch 128"
SHALLOW_BODY = "2 GNN layers, 1 transformer layer, minibatch 128"
BODIES: dict[str, tuple[int, dict[str, Any]]] = {
    DEFAULT_BODY: (64, {}),
    DEEP_BODY: (128, SMALL),
    SHALLOW_BODY: (128, {**SMALL, "num_gnn_layers": 2}),
}
"""Minibatch size and agent parameters."""
PASSES = 5
"""Passes of each plain body between two iterations."""
REFERENCE_MS = {DEFAULT_BODY: 17.4, DEEP_BODY: 12.4, SHALLOW_BODY: 9.1}
"""Time of a plain pass on the reference machine.

Measured there: 20, 14 and 10; plain passes now take 0.87, 0.89 and 0.91 of that.
"""


class PlainBody:
    """Body and solo head without fast path, with a minibatch in which all rows act."""

    def __init__(self, name: str) -> None:
        rows, section = BODIES[name]
        hyper_params = HyperParameters(
            scenario="graph_isomorphism",
            trainer="vanilla_ppo",
            dataset="er1000",
            pretrain_agents=True,
            agents={"_default": section},
        )
        instance = build_scenario_instance(hyper_params, ExperimentSettings())
        self.agents = instance.combined_agents
        self.data = instance.train_environment.gather_data(torch.arange(rows))

    def median_ms(self) -> float:
        """Return the median CPU time of a forward and backward pass."""
        times = []
        with only_plain_operations():
            for _ in range(PASSES):
                start = time.process_time()
                self.agents.solo_logits("verifier", self.data).square().sum().backward()
                times.append(1000 * (time.process_time() - start))
        return statistics.median(times)


@dataclass(frozen=True)
class Setting:
    """Training parameters, their target on the reference machine, and the bodies to time."""

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
                "_default": SMALL,
                "verifier": {"num_gnn_layers": 2},
                "prover": {"num_gnn_layers": 5},
            },
        },
    ),
)


class Stopwatch:
    """CPU time spent in wrapped functions, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function to add its CPU time under a name."""

        def timed(*args: object, **kwargs: object) -> object:
            with self.running(name):
                return function(*args, **kwargs)

        return timed

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Add the CPU time of a block under a name."""
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
    parts.loss_module.evaluate = watch.wrap("forward", parts.loss_module.evaluate)  # type: ignore[method-assign]
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
    """One setting, trained one iteration at a time."""

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
        """Rates scaled to the reference machine by the plain pass of the default body."""
        self.by_own_bodies: list[float] = []
        """Rates scaled by the plain passes of the setting's bodies."""
        trainer.initial_state()
        self.run()

    def run(self) -> float:
        """Run an iteration and return its frames per CPU-second."""
        start = time.process_time()
        self.trainer.run_iterations(self.iteration, self.iteration + 1)
        self.iteration += 1
        return self.frames / (time.process_time() - start)

    def measure(self, slowness: dict[str, float]) -> None:
        """Run an iteration, given the current slowdown of each plain body."""
        rate = self.run()
        mean_slowness = statistics.mean(slowness[body] for body in self.setting.bodies)
        self.rates.append(rate)
        self.by_default_body.append(rate * slowness[DEFAULT_BODY])
        self.by_own_bodies.append(rate * mean_slowness)

    def report(self) -> None:
        """Print the rates and phases of this setting."""
        columns = (self.rates, self.by_default_body, self.by_own_bodies)
        figures = "".join(f"{statistics.median(c):8.0f} {min(c):6.0f}" for c in columns)
        print(f"{self.setting.name:50s}{figures} {self.setting.bar:8.0f}")
        stopwatch = watch(self.trainer)
        self.run()
        seconds = stopwatch.seconds
        seconds["losses and backward"] = seconds.pop("gradients") - seconds["forward"]
        phases = ", ".join(f"{phase} {1000 * s:.0f}" for phase, s in seconds.items())
        print(f"    phases of one iteration, ms: {phases}")


def main() -> None:
    """Measure each setting, in turn with the plain bodies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    bodies = {name: PlainBody(name) for name in BODIES}
    trainings = [Training(setting) for setting in SETTINGS]

    def slowness() -> dict[str, float]:
        plain = {name: body.median_ms() for name, body in bodies.items()}
        seen.append(plain)
        return {name: plain[name] / REFERENCE_MS[name] for name in plain}

    seen: list[dict[str, float]] = []
    slowness()
    for _ in range(arguments.iterations):
        for training in trainings:
            training.measure(slowness())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print("plain passes, ms (reference machine):")
    for name, there in REFERENCE_MS.items():
        print(f"    {name:50s} {statistics.median(ms[name] for ms in seen):6.1f} ({there:.1f})")
    print("frames per CPU-second, median and minimum: measured, scaled by the default body, scaled")
    print("by the setting's bodies; target")
    for training in trainings:
        training.report()
    print(f"peak memory {memory:.0f} MiB")


if __name__ == "__main__":
    main()
