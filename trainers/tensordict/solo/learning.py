"""Supervised learning of single agents: body and solo head predict y with cross-entropy.

Used by the solo-agent trainer, for all agents together, and to pretrain one agent's body. Agents
share no parameters, so that training several together equals training each separately.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ratchet.fast.adam import clip_gradients
from ratchet.seeding import torch_generator
from trainers.results import Metrics, Table
from trainers.tensordict.optimization.optimizer import build_adam, frozen, idle_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratchet.agents.actor_critic import ActorCritic
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.tensor_environment import TensorEnvironment


class SoloLearner:
    """Trains the bodies and solo heads of some agents, in place.

    Reads the parameters ``solo_agent``, ``rl.body_lr_factor``, ``rl.adam_eps``,
    ``rl.max_grad_norm`` (for each agent's gradient) and the seed, which together with the stage
    determines the generators.
    """

    def __init__(
        self,
        agents: ActorCritic,
        names: Sequence[str],
        hyper_params: HyperParameters,
        *,
        stage: str,
    ) -> None:
        self.agents = agents
        self.names = tuple(names)
        self.section = hyper_params.solo_agent
        self.seed = hyper_params.seed
        self.stage = stage
        groups = agents.parameter_groups(
            hyper_params.rl,
            solo=True,
            solo_body_factor=not self.section.body_lr_factor_override,
        )
        mine = [group for group in groups if group.agent in self.names]
        rl = hyper_params.rl
        self.optimizer = build_adam(mine, self.section.learning_rate, eps=rl.adam_eps)
        self.max_grad_norm = rl.max_grad_norm
        self.off = idle_parameters(mine)
        self.clipped = [
            [p for group in mine if group.agent == name and group.lr_factor for p in group.params]
            for name in self.names
        ]

    def run_epoch(
        self,
        epoch: int,
        environment: TensorEnvironment,
        max_batches: int | None = None,
        after_loss: Callable[[Mapping[str, Tensor]], None] | None = None,
    ) -> Metrics:
        """Train on every datapoint once, in minibatches of sizes that differ by at most one.

        At most ``max_batches`` of them. ``after_loss`` is called with the losses, [agents], before
        each step. Returns ``AGENT.train_loss`` and ``AGENT.train_accuracy``, measured during
        training.
        """
        size = len(environment.dataset)
        purpose = "minibatch" if len(self.names) != 1 else f"minibatch.{self.names[0]}"
        generator = torch_generator(self.seed, self.stage, epoch, purpose)
        order = torch.randperm(size, generator=generator).to(environment.device)
        sums = torch.zeros(2, len(self.names), dtype=torch.float64, device=environment.device)
        seen = 0
        for ids in order.tensor_split(math.ceil(size / self.section.batch_size))[:max_batches]:
            self.optimizer.zero_grad(set_to_none=True)
            with frozen(self.off):
                loss, right = self._losses(environment, ids)
                if loss.requires_grad:
                    loss.sum().backward()  # type: ignore[no-untyped-call] # of torch
            if after_loss is not None:
                after_loss({"loss": loss.detach()})
            for params in self.clipped:
                clip_gradients(params, self.max_grad_norm)
            self.optimizer.step()
            sums += torch.stack([loss.detach() * len(ids), right]).double()
            seen += len(ids)
        return self._named("train", sums / seen)

    def _losses(self, environment: TensorEnvironment, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss and the number of correct predictions of each agent."""
        data, y = environment.gather_data(ids), environment.dataset["y"][ids]
        losses, right = [], []
        for name in self.names:
            logits = self.agents.solo_logits(name, data)
            losses.append(F.cross_entropy(logits, y))
            right.append((logits.argmax(-1) == y).sum())
        return torch.stack(losses), torch.stack(right)

    @torch.no_grad()
    def predict(self, environment: TensorEnvironment) -> tuple[Metrics, Table]:
        """Predict every datapoint.

        Returns ``AGENT.test_loss`` and ``AGENT.test_accuracy``, and a table with ``datapoint_id``,
        ``y``, and for each agent ``decision.AGENT`` and ``probability.AGENT`` (of y = 1).
        """
        size = len(environment.dataset)
        every = torch.arange(size, device=environment.device)
        y = environment.dataset["y"]
        table: Table = {"datapoint_id": every.tolist(), "y": y.tolist()}
        sums = torch.zeros(2, len(self.names), dtype=torch.float64, device=environment.device)
        for index, name in enumerate(self.names):
            parts = [
                self.agents.solo_logits(name, environment.gather_data(ids))
                for ids in every.tensor_split(math.ceil(size / self.section.batch_size))
            ]
            logits = torch.cat(parts)
            decision = logits.argmax(-1)
            sums[0, index] = F.cross_entropy(logits, y)
            sums[1, index] = (decision == y).double().mean()
            table[f"decision.{name}"] = decision.tolist()
            table[f"probability.{name}"] = logits.softmax(-1)[:, 1].tolist()
        return self._named("test", sums), table

    def _named(self, split: str, values: Tensor) -> Metrics:
        """Name losses and accuracies, ``[2, agents]``."""
        losses, accuracies = values.tolist()
        stats = {f"{n}.{split}_loss": v for n, v in zip(self.names, losses, strict=True)}
        both = zip(self.names, accuracies, strict=True)
        return stats | {f"{n}.{split}_accuracy": v for n, v in both}

    def params(self) -> dict[str, nn.Parameter]:
        """Return all agents' parameters by unique names."""
        return dict(self.agents.named_parameters())
