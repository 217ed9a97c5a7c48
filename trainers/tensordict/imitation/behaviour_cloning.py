"""Behaviour cloning: an agent learns by cross-entropy to imitate its demonstrator's actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDictBase
from torch import Tensor

from ratchet.agents.actor_critic import INDEX
from ratchet.agents.lr_groups import ParameterGroup
from ratchet.fast.adam import clip_gradients
from ratchet.seeding import derive_seed, seeded_globals, torch_generator
from trainers.progress import report_iterations
from trainers.results import Metrics, PretrainResult
from trainers.tensordict.imitation.demonstrations import (
    STAGE,
    RolloutDemonstrator,
    ScriptedDemonstrator,
)
from trainers.tensordict.objectives.value_estimators import acting_mask
from trainers.tensordict.optimization.optimizer import (
    build_adam,
    learning_rate_scale,
    set_learning_rates,
)
from trainers.tensordict.optimization.replay import RolloutBuffer
from trainers.tensordict.states.snapshots import agent_tensors, copy_tensors
from trainers.tensordict.states.state import check_same_tensors, clone_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ratchet.agents.actor_critic import ActorCritic
    from trainers.tensordict.base import TensorDictTrainer

PARTS = ("body", "policy_head")
"""The trained parts of an agent; demonstrations contain no values for its critic."""
_NUM_EVALUATIONS = 10
"""Number of evaluations on held-out pairs, the last one at the end."""


class ImitationLearner:
    """Trains one agent's body and policy head, in place."""

    def __init__(
        self,
        trainer: TensorDictTrainer,
        name: str,
        source: ScriptedDemonstrator | RolloutDemonstrator,
    ) -> None:
        self.agents, self.name, self.source = trainer.combined_agents, name, source
        self.trainer, self.seed = trainer, trainer.hyper_params.seed
        self.section = trainer.hyper_params.imitation
        self.index = self.agents.agent_names.index(name)
        mine = self.agents.parts[name].named_parameters()
        self.params = [param for path, param in mine if path.partition(".")[0] in PARTS]
        group = ParameterGroup(f"{name}.{STAGE}", name, STAGE, tuple(self.params), 1.0)
        rl = trainer.hyper_params.rl
        self.optimizer = build_adam([group], self.section.lr, eps=rl.adam_eps)
        self.max_grad_norm = rl.max_grad_norm
        self._held_out = self._turns(source.held_out())

    @property
    def num_iterations(self) -> int:
        """The configured number; one in a test run."""
        return 1 if self.trainer.settings.test_run else int(self.section.num_iterations)

    def run_iteration(self, iteration: int) -> Metrics:
        """Train on new demonstrations; return losses, and periodically accuracies.

        ``AGENT.train_loss``, measured during training; ``AGENT.test_loss`` and
        ``AGENT.test_correct_actions`` on held-out datapoints.
        """
        scale = learning_rate_scale(iteration, self.num_iterations, anneal=self.section.anneal_lr)
        set_learning_rates(self.optimizer, self.section.lr * scale)
        generator = torch_generator(self.seed, STAGE, iteration, "minibatch", self.name)
        buffer = RolloutBuffer(self.section.minibatch_size)
        buffer.store(self._turns(self.source.frames(iteration)))
        losses = []
        if len(buffer):
            with self.agents.remembering(buffer.frames):
                for _ in range(self.section.num_epochs):
                    for batch in buffer.minibatches(generator, (*self.agents.frame_keys, INDEX)):
                        losses.append(self._learn(batch))
        metrics = {"train_loss": torch.stack(losses).mean().item()} if losses else {}
        done = iteration + 1
        if (
            done * _NUM_EVALUATIONS // self.num_iterations
            > iteration * _NUM_EVALUATIONS // self.num_iterations
        ):
            metrics |= self.evaluate()
        return {f"{self.name}.{what}": value for what, value in metrics.items()}

    @torch.no_grad()
    def evaluate(self) -> Metrics:
        """Evaluate the agent on its demonstrator's held-out turns."""
        frames = self._held_out
        if not len(frames):
            return {}
        training = self.agents.training
        self.agents.eval()
        try:
            with self.agents.bound_to(self.source.environment):
                loss = -self.agents.score(frames, agents=[self.name])[0][:, self.index].mean()
                done = self.agents.act(frames.clone(), deterministic=True)
        finally:
            self.agents.train(training)
        right = self.source.right(frames, done, self.name).double().mean()
        return {"test_loss": float(loss), "test_correct_actions": float(right)}

    def _turns(self, frames: TensorDictBase) -> TensorDictBase:
        """Select the frames ``[N]`` in which the agent acts."""
        return frames[acting_mask(frames)[:, self.index]]

    def _learn(self, batch: TensorDictBase) -> Tensor:
        for param in self.params:
            param.grad = None
        log_prob = self.agents.score_remembered(batch, agents=[self.name])[0]
        loss = -log_prob[:, self.index].mean()
        loss.backward()  # type: ignore[no-untyped-call] # of torch
        clip_gradients(self.params, self.max_grad_norm)
        self.optimizer.step()
        return loss.detach()


def imitate(
    trainer: TensorDictTrainer, agent_name: str, files: Sequence[Path] = ()
) -> PretrainResult:
    """Train one agent, in place, to imitate its demonstrator.

    ``files`` are the rollouts of a run, if these are imitated. Returns weights and each
    iteration's metrics.
    """
    seed = trainer.hyper_params.seed
    is_stored = trainer.hyper_params.imitation.run is not None

    def run_iteration(iteration: int) -> Metrics:
        with seeded_globals(derive_seed(seed, STAGE, iteration, "globals", agent_name)):
            return learner.run_iteration(iteration)

    with seeded_globals(derive_seed(seed, STAGE, 0, "globals", agent_name)):
        source = RolloutDemonstrator(trainer, files) if is_stored else ScriptedDemonstrator(trainer)
        learner = ImitationLearner(trainer, agent_name, source)
    iterations = range(learner.num_iterations)
    metrics = report_iterations(f"{agent_name} imitates", iterations, run_iteration)
    parts = _parts(agent_tensors(trainer.combined_agents)[agent_name])
    return PretrainResult(clone_tensors(parts), metrics)


def load_imitated(agents: ActorCritic, agent_name: str, weights: Mapping[str, Tensor]) -> None:
    """Load an agent's weights from imitation; StateError if names or shapes differ."""
    mine = _parts(agent_tensors(agents)[agent_name])
    check_same_tensors(weights, mine, f"imitating agent {agent_name!r}")
    copy_tensors(mine, weights)


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: t for name, t in tensors.items() if name.partition(".")[0] in PARTS}
