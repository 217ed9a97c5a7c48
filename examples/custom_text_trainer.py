"""Custom text trainer, run in a plain loop: no server, no tracking, no model.

Only the selection of training data is new; the base class implements sampling, statistics, tests,
jobs and resuming. In an experiment file:
``trainer: {module_path: custom_text_trainer.py, class_name: RightRolloutsTrainer}``.
Run with ``python examples/custom_text_trainer.py``; completions are random here, since the agents
have ``use_dummy_api``. Without this parameter, agents are models behind an API.
"""

from __future__ import annotations

from ratchet import ExperimentSettings, HyperParameters
from ratchet.rollouts import NestedArrayDict
from ratchet.rollouts.outcomes import were_correct
from ratchet.scenarios import build_scenario_instance
from trainers import PureTextRlTrainer, register_trainer


@register_trainer("right_rollouts")
class RightRolloutsTrainer(PureTextRlTrainer):
    """Fine-tune all agents on the rollouts in which the verifier decided correctly."""

    def _stage_create_fine_tune_jobs(self, rollouts: NestedArrayDict) -> None:
        verifier = self.agent_names.index("verifier")
        right = rollouts[were_correct(rollouts, verifier)]
        for group in self.shared_model_groups.values():
            group.create_supervised_fine_tune_job(dict.fromkeys(group.agent_names, right))

    def _get_log_stats(self, rollouts: NestedArrayDict, *, train: bool = True) -> dict[str, float]:
        stats = super()._get_log_stats(rollouts, train=train)
        words = [len(text.split()) for text in rollouts["raw_message_history"].flat if text]
        stats["mean_words"] = sum(words) / max(len(words), 1)
        return stats


def main() -> None:
    """Train for two iterations and print the names of the resulting models."""
    hyper_params = HyperParameters(
        scenario="code_validation",
        trainer="right_rollouts",
        dataset="generated",
        nip_protocol={"max_message_rounds": 3},
        code_validation={"num_train": 12, "num_test": 6},
        rl={"num_iterations": 2, "rollouts_per_iteration": 40},
        agents={"_default": {"use_dummy_api": True}},
    )
    settings = ExperimentSettings()
    scenario_instance = build_scenario_instance(
        hyper_params, settings, trainer_type=RightRolloutsTrainer.trainer_type
    )
    trainer = RightRolloutsTrainer(hyper_params, scenario_instance, settings)
    trainer.train()
    for record in trainer.history:
        print(f"{record.stage} {record.iteration}: {len(record.values)} statistics")
    for name, agent in trainer.state.agents.items():
        print(f"{name}: {agent.model_name}")


if __name__ == "__main__":
    main()
