"""Small experiments with TorchRL's trainers: a few frames of CartPole and Pendulum."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import trainer_class

EXAMPLES = Path(__file__).parents[3] / "examples"
DATASETS = {"dqn": "CartPole-v1", "ppo": "CartPole-v1", "a2c": "CartPole-v1"}
DATASETS["reinforce"] = "CartPole-v1"
_FLAGS = ("done", "terminated")
ON_POLICY = ("ppo", "a2c", "reinforce")
BASE = {"scenario": "gymnasium", "gymnasium": {"num_test_episodes": 2, "num_train_seeds": 4}}
COMMON = {
    "torchrl.batches_per_iteration": 2,
    "collector.frames_per_batch": 24,
    "trainer.total_frames": 192,
}
_FRAMES = Path(tempfile.mkdtemp()) / "frames.safetensors"
PARTS = {
    "on": {"replay_buffer.batch_size": 8, "trainer.num_epochs": 2},
    "off": {
        "replay_buffer.batch_size": 8,
        "replay_buffer.storage.max_size": 100,  # so that the ring goes round
        "collector.init_random_frames": 24,
        "trainer.optim_steps_per_batch": 3,
    },
}

PARTS["offline_to_online"] = {
    "replay_buffer.batch_size": 8,
    "replay_buffer.online_capacity": 100,
    "replay_buffer.offline_dataset": str(_FRAMES),
    "trainer.optim_steps_per_batch": 3,
}


def write_frames(path: Path = _FRAMES, number: int = 30) -> None:
    """Write frames such as Pendulum's, recorded with some policy."""
    drawn = torch.Generator().manual_seed(5)

    def uniform(size: int) -> torch.Tensor:
        return torch.rand(number, size, generator=drawn) * 2 - 1

    frames = {"observation": uniform(3), "action": 2 * uniform(1), "next/observation": uniform(3)}
    flags = {f"next/{name}": torch.zeros(number, 1, dtype=torch.bool) for name in _FLAGS}
    save_file({**frames, "next/reward": uniform(1), **flags}, path)


def part_of(algorithm: str) -> dict[str, Any]:
    """Return the options that make an algorithm small."""
    if algorithm == "offline_to_online" and not _FRAMES.exists():
        write_frames()
    return PARTS.get(algorithm) or PARTS["on" if algorithm in ON_POLICY else "off"]


def parameters(algorithm: str, dataset: str | None = None, **changes: Any) -> HyperParameters:
    """Make the parameters of a library algorithm; dots in changes are two underscores."""
    plain = {path.replace("__", "."): value for path, value in changes.items()}
    part = part_of(algorithm)
    base = HyperParameters(
        **BASE,
        trainer=f"torchrl_{algorithm}",
        dataset=dataset or DATASETS.get(algorithm, "Pendulum-v1"),
    )
    return base.replace({**COMMON, **part, **plain})


def custom_parameters(**changes: Any) -> HyperParameters:
    """Make the parameters of the example's custom trainer."""
    plain = {path.replace("__", "."): value for path, value in changes.items()}
    base = HyperParameters(
        **BASE,
        trainer={"module_path": "custom_torchrl_trainer.py", "class_name": "CustomTrainer"},
        dataset="CartPole-v1",
        rl={"num_iterations": 3, "frames_per_batch": 24, "minibatch_size": 8, "num_epochs": 2},
    )
    return base.replace(plain)


@cache
def _instance(dataset: str) -> Any:
    return build_scenario_instance(
        HyperParameters(**BASE, trainer="torchrl_ppo", dataset=dataset), ExperimentSettings()
    )


def build(hyper_params: HyperParameters, **settings: Any) -> Any:
    """Build a trainer; agents and datasets are shared, since the library's don't change them."""
    found = trainer_class(hyper_params, EXAMPLES)
    made = ExperimentSettings(**settings)
    return found(hyper_params, _instance(hyper_params.dataset), made)


def make(algorithm: str, dataset: str | None = None, **changes: Any) -> Any:
    """Build the trainer of a library algorithm."""
    return build(parameters(algorithm, dataset, **changes))


def trained(algorithm: str, iterations: int = 3, **changes: Any) -> Any:
    """Build a trainer and train it from the initial state, in one part."""
    trainer = make(algorithm, **changes)
    trainer.initial_state()
    trainer.metrics = trainer.run_iterations(0, iterations)
    return trainer
