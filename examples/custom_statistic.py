"""Custom statistic recorded in each iteration of training.

Run it:    python examples/custom_statistic.py
Train it:  trainer: {module_path: custom_statistic.py, class_name: HonestyTrainer}

PPO with one additional metric: the share of 1s the prover sends when the bit is 0. Like the
built-in metrics, it is written to ``metrics.jsonl``, MLflow and the report's curves.
"""

from __future__ import annotations

from tensordict import TensorDictBase

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import build_scenario_instance
from trainers import Trainer, register_trainer
from trainers.registry import build_trainer
from trainers.tensordict.vanilla_ppo import VanillaPpoTrainer


@register_trainer("honesty")
class HonestyTrainer(VanillaPpoTrainer):
    """PPO that records the prover's lie rate in the binary erasure channel."""

    def _get_log_stats(
        self,
        rollouts: TensorDictBase,
        mean_loss_vals: TensorDictBase | None = None,
        *,
        train: bool = True,
    ) -> dict[str, float]:
        """Add the share of lies; ``rollouts`` are ``[E, T]``: episodes and their rounds."""
        stats = super()._get_log_stats(rollouts, mean_loss_vals, train=train)
        prover = self.agent_names.index("prover")
        return stats | {"prover.lie_rate": lie_rate(rollouts, prover)}


def lie_rate(rollouts: TensorDictBase, prover: int) -> float:
    """Compute the share of ones in the prover's messages about bits that are 0."""
    said = rollouts["agents", "message"][:, :, prover].flatten(2).squeeze(-1)
    tempted = rollouts["agents", "active"][:, :, prover, 0] & (rollouts["y"] == 0)
    return (said[tempted] == 1).float().mean().item()


def train(num_iterations: int) -> Trainer:
    """Train both agents in this process."""
    hyper_params = HyperParameters(
        scenario="binary_erasure_channel",
        trainer="honesty",
        dataset="generated",
        interaction_protocol="adp",
        rl={
            "num_iterations": num_iterations,
            "frames_per_batch": 1024,
            "minibatch_size": 256,
            "lr": 0.01,
        },
    )
    settings = ExperimentSettings()
    scenario_instance = build_scenario_instance(hyper_params, settings)
    trainer = build_trainer(hyper_params, scenario_instance, settings)
    trainer.train()
    return trainer


def main() -> None:
    """Print the prover's lie rate and the verifier's accuracy during training."""
    for record in train(num_iterations=30).history:
        if record.stage == "train" and record.iteration % 5 == 4:
            rate, accuracy = record.values["prover.lie_rate"], record.values["verifier.accuracy"]
            print(f"{record.iteration}: lies {rate:.0%}, accuracy {accuracy:.0%}")


if __name__ == "__main__":
    main()
