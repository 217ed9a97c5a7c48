"""Two custom trainers: the first changes only the loss, the second has its own training loop.

The file runs them in a plain loop, without server and tracking.

Run it:    python examples/custom_trainer.py
Train it:  ratchet run examples/custom_trainer.yaml
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.objectives import ValueEstimators

from ratchet import ExperimentSettings, HyperParameters
from ratchet.scenarios import Environment, build_scenario_instance
from trainers import (
    IterationContext,
    Objective,
    TensorDictRlTrainer,
    TensorDictTrainer,
    Trainer,
    attach_progress_bar,
    register_trainer,
)


class AdvantageActorCriticLoss(Objective):
    """Policy gradient with a critic: −log π · A + ½ (V − target)²."""

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the loss of a minibatch: the sum of entries named ``loss_…``."""
        now = self.evaluate(tensordict)
        mask = self.learning_mask(tensordict).float()
        count = mask.sum().clamp(min=1)
        advantage = tensordict["agents", "advantage"]
        error = now.value - tensordict["agents", "value_target"]
        losses = {
            "loss_objective": -(now.log_prob * advantage * mask).sum() / count,
            "loss_critic": 0.5 * (error.square() * mask).sum() / count,
            "loss_entropy": -0.001 * (now.entropy * mask).sum() / count,
        }
        return TensorDict(losses, batch_size=[])


@register_trainer("advantage_actor_critic")
class AdvantageActorCriticTrainer(TensorDictRlTrainer):
    """Trainer with a custom loss; all other steps are the base class's."""

    def build_loss(self) -> tuple[Objective, torch.nn.Module]:
        """Create the loss and the estimator of its advantages."""
        loss_module = AdvantageActorCriticLoss(self.policy_operator, self.value_operator)
        additional_parameters = {
            "gamma": self.hyper_params.rl.gamma,
            "lmbda": self.hyper_params.rl.lmbda,
        }
        loss_module.make_value_estimator(ValueEstimators.GAE, **additional_parameters)
        gae = loss_module.value_estimator
        return loss_module, gae


@register_trainer("hill_climbing")
class HillClimbingTrainer(TensorDictTrainer):
    """Perturb all weights and keep the change if the verifier's reward did not drop."""

    @dataclass
    class State(TensorDictTrainer.State):
        """Loop state, apart from the weights and the number of iterations."""

        best: float = float("-inf")

    def train(self) -> None:
        """Set the seed and run both loops; checkpoints survive a kill."""
        torch.manual_seed(self.hyper_params.seed)
        with ExitStack() as stack:
            self._build_train_context(stack)
            self._run_train_loop()
        with ExitStack() as stack:
            self._build_test_context(stack)
            self._run_test_loop()

    @attach_progress_bar(lambda self: self.hyper_params.rl.num_iterations)
    def _run_train_loop(self, iteration_context: IterationContext) -> None:
        iteration_context.set_description("Training")
        if self.state.iteration == 0:
            self.state.best = self._mean_reward(self.scenario_instance.train_environment, 0)
        for iteration in range(self.state.iteration, self.hyper_params.rl.num_iterations):
            before = [p.detach().clone() for p in self.combined_agents.parameters()]
            with torch.no_grad():
                for parameter in self.combined_agents.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
            reward = self._mean_reward(self.scenario_instance.train_environment, iteration)
            if reward >= self.state.best:
                self.state.best = reward
            else:
                with torch.no_grad():
                    for parameter, old in zip(
                        self.combined_agents.parameters(), before, strict=True
                    ):
                        parameter.copy_(old)
            self.log_stats({"best_reward": self.state.best}, iteration=iteration, stage="train")
            self.state.iteration = iteration + 1
            if self.settings.run_id is not None:
                self.save_checkpoint(log=False)
            iteration_context.step()

    @attach_progress_bar(lambda self: self.hyper_params.rl.num_test_iterations)
    def _run_test_loop(self, iteration_context: IterationContext) -> None:
        iteration_context.set_description("Testing")
        for iteration in range(self.hyper_params.rl.num_test_iterations):
            reward = self._mean_reward(self.scenario_instance.test_environment, iteration)
            self.log_stats({"reward": reward}, iteration=iteration, stage="test")
            iteration_context.step()

    @torch.no_grad()
    def _mean_reward(self, environment: Environment, iteration: int) -> float:
        """Play one episode in each environment; return the verifier's mean reward."""
        verifier = self.agent_names.index("verifier")
        ids = torch.randint(len(environment.dataset), environment.batch_size)
        generators = self.agent_generators("play", iteration, "action")
        total = 0.0
        with self.combined_agents.bound_to(environment):
            td = environment.reset(ids, torch.zeros_like(ids))
            for _ in range(self.max_message_rounds):
                self.combined_agents.act(td, generators=generators)
                td = environment.step(td)
                total += float(td["agents", "reward"][:, verifier].sum())
        return total / len(ids)


def run(trainer_class: type[Trainer], hyper_params: HyperParameters) -> Trainer:
    """Build everything and train, in this process."""
    settings = ExperimentSettings()
    scenario_instance = build_scenario_instance(
        hyper_params, settings, trainer_type=trainer_class.trainer_type
    )
    trainer = trainer_class(hyper_params, scenario_instance, settings)
    trainer.train()
    return trainer


def main() -> None:
    """Train with both for a few iterations and print the last metrics."""
    torch.set_num_threads(1)
    for name, trainer_class in (
        ("advantage_actor_critic", AdvantageActorCriticTrainer),
        ("hill_climbing", HillClimbingTrainer),
    ):
        hyper_params = HyperParameters(
            scenario="graph_isomorphism",
            trainer=name,
            dataset="er100",
            interaction_protocol="adp",
            graph_isomorphism={"graph_sizes": [7, 8]},
            rl={"num_iterations": 3, "frames_per_batch": 64, "num_test_iterations": 1},
        )
        trainer = run(trainer_class, hyper_params)
        print(f"{name}: {trainer.get_total_num_iterations()} iterations")
        for record in trainer.history[-2:]:
            first = [f"{metric} {value:.3f}" for metric, value in record.values.items()][:3]
            print(f"  {record.stage} {record.iteration}: {', '.join(first)} …")


if __name__ == "__main__":
    main()
