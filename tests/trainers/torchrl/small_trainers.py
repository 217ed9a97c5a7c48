"""Small experiments with TorchRL's trainers: a few frames of CartPole and Pendulum."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers.registry import trainer_class

EXAMPLES = Path(__file__).parents[3] / "examples"
DATASETS = {"dqn": "CartPole-v1", "ppo": "CartPole-v1", "a2c": "CartPole-v1"}
DATASETS["reinforce"] = "CartPole-v1"
ON_POLICY = ("ppo", "a2c", "reinforce")
BASE = {"scenario": "gymnasium", "gymnasium": {"num_test_episodes": 2, "num_train_seeds": 4}}
COMMON = {
    "torchrl.batches_per_iteration": 2,
    "collector.frames_per_batch": 24,
    "trainer.total_frames": 192,
}
PARTS = {
    "on": {"replay_buffer.batch_size": 8, "trainer.num_epochs": 2},
    "off": {
        "replay_buffer.batch_size": 8,
        "replay_buffer.storage.max_size": 100,  # so that the ring goes round
        "collector.init_random_frames": 24,
        "trainer.optim_steps_per_batch": 3,
    },
}


def parameters(algorithm: str, dataset: str | None = None, **changes: Any) -> HyperParameters:
    """Make the parameters of a library algorithm; dots in changes are two underscores."""
    plain = {path.replace("__", "."): value for path, value in changes.items()}
    part = PARTS["on" if algorithm in ON_POLICY else "off"]
    base = HyperParameters(
        **BASE,
        trainer=f"torchrl_{algorithm}",
        dataset=dataset or DATASETS.get(algorithm, "Pendulum-v1"),
    )
    return base.replace({**COMMON, **part, **plain})


def own_parameters(**changes: Any) -> HyperParameters:
    """Make the parameters of the example's own trainer."""
    plain = {path.replace("__", "."): value for path, value in changes.items()}
    base = HyperParameters(
        **BASE,
        trainer={"module_path": "own_torchrl_trainer.py", "class_name": "OwnTrainer"},
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
    """Build a trainer and let it learn from the beginning, without a cut."""
    trainer = make(algorithm, **changes)
    trainer.initial_state()
    trainer.metrics = trainer.run_iterations(0, iterations)
    return trainer
