"""CPU time of opponent shaping relative to PPO at equal frames, with profiles.

Run with ``python benchmarks/spg.py [--iterations N]``. Networks, protocol and sizes are those of
``experiments/demo.yaml``. Every measurement is of the first iteration, with untrained agents, since
training changes how often each agent acts. CPU time of this process on one thread. Trainers take
turns, so that drift of the machine affects all equally; ratios are to PPO's median.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import cProfile
import pstats
import statistics
import time
from typing import Any

import torch

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import build_trainer
from trainers.tensordict.rl import TensorDictRlTrainer

BAR = 4.0
SETTING: dict[str, Any] = {
    "scenario": "graph_isomorphism",
    "dataset": "generated",
    "nip_protocol": {"max_message_rounds": 4},
    "graph_isomorphism": {"num_pairs": 1000},
    "rl": {
        "frames_per_batch": 1024,
        "minibatch_size": 128,
        "lr": 0.01,
        "body_lr_factor": {"actor": 0.05, "critic": 0.05},
    },
    "agents": {
        "_default": {"use_dual_gnn": False, "num_transformer_layers": 1, "use_batch_norm": False}
    },
}
SHAPED = {
    **{variant: {"variant": variant} for variant in ("lola", "pola", "sos", "psos")},
    **{
        f"{variant}, {solver}": {"variant": variant, "ihvp_variant": solver}
        for variant in ("spg", "pspg")
        for solver in ("nystrom", "conj_grad", "neumann")
    },
}
TRAINERS: dict[str, dict[str, Any]] = {
    "vanilla_ppo": {"trainer": "vanilla_ppo"},
    "reinforce": {"trainer": "reinforce"},
    "reinforce with a critic": {
        "trainer": "reinforce",
        "reinforce": {"use_advantage_and_critic": True},
    },
    **{name: {"trainer": "spg", "spg": options} for name, options in SHAPED.items()},
}
PARTS = (
    ("collectors.py", "collect"),
    ("combined.py", "score_remembered"),
    ("sampled_game.py", "_backward"),
    ("sampled_game.py", "_linearised"),
    ("sampled_game.py", "_forward"),
    ("sampled_game.py", "hessian_products"),
    ("objectives.py", "compute_gradients"),
)


def make(changes: dict[str, Any]) -> TensorDictRlTrainer:
    """Build a trainer, warm it up, and restore its initial state."""
    hyper_params = HyperParameters(**{**SETTING, **changes})
    settings = ExperimentSettings()
    scenario = build_scenario_instance(hyper_params, settings)
    trainer = build_trainer(hyper_params, scenario, settings)
    assert isinstance(trainer, TensorDictRlTrainer)
    start = trainer.initial_state()
    trainer.run_iterations(0, 1)
    trainer.state = start
    return trainer


def profile(trainer: TensorDictRlTrainer) -> str:
    """Return the ms of the parts of one iteration; parts may be nested."""
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(trainer.run_iterations, 0, 1)
    seconds_by_function: dict[str, float] = {}
    for (file, _, name), (*_, seconds, _) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        if (os.path.basename(file), name) in PARTS:
            seconds_by_function[name] = seconds_by_function.get(name, 0.0) + seconds
    return ", ".join(
        f"{name} {1000 * seconds_by_function[name]:.0f}"
        for _, name in PARTS
        if name in seconds_by_function
    )


def main() -> None:
    """Measure all trainers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(TRAINERS), help="besides vanilla_ppo")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    names = {"vanilla_ppo", *arguments.only}
    chosen = {name: changes for name, changes in TRAINERS.items() if name in names}
    trainers = {name: make(changes) for name, changes in chosen.items()}
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(arguments.iterations):
        for name, trainer in trainers.items():
            first, start = trainer.state, time.process_time()
            trainer.run_iterations(0, 1)
            seconds[name].append(time.process_time() - start)
            trainer.state = first
    ppo = statistics.median(seconds["vanilla_ppo"])
    print(f"{'CPU time of an iteration':26s} {'ms':>7s} {'ratio':>6s} {'bar':>5s}")
    for name, trainer in trainers.items():
        median = statistics.median(seconds[name])
        bar = f"{BAR:5.1f}" if name in SHAPED else ""
        print(f"{name:26s} {1000 * median:7.0f} {median / ppo:6.2f} {bar}")
        print(f"    profile, ms: {profile(trainer)}")


if __name__ == "__main__":
    main()
