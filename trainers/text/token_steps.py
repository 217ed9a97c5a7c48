"""Conversion of trajectories with advantages into optimizer steps of a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ratchet.language_models.training_service.interface import OptimizerSettings, TrainingExample
from ratchet.language_models.training_service.steps import ServiceLoss, TrainingSteps

if TYPE_CHECKING:
    import numpy as np

    from ratchet.parameters.text_trainers import PureTextGrpoParameters
    from ratchet.rollouts.trajectory import Trajectory

_LOSSES = {"clip": "ppo"}
"""Ratchet's name of a loss → the service's, if different."""


def training_steps(
    trajectories: Sequence[Trajectory],
    parameters: PureTextGrpoParameters,
    generator: np.random.Generator,
    *,
    longest_reply: int,
) -> TrainingSteps | None:
    """Return the steps that train on trajectories; None if no trajectory has an advantage.

    Trajectories without one count in means, but are not sent. If a pass has several steps, the
    generator samples the trajectories of each.
    """
    taken = [one for one in trajectories if one.num_written]
    size = parameters.batch_size or max(1, len(taken))
    examples: list[TrainingExample] = []
    batches = []
    for _ in range(parameters.num_epochs):
        order = generator.permutation(len(taken)) if size < len(taken) else range(len(taken))
        for start in range(0, len(taken), size):
            batch = [taken[place] for place in order[start : start + size]]
            first = len(examples)
            examples += _examples(batch, parameters, longest_reply)
            if len(examples) > first:
                batches.append(range(first, len(examples)))
    if not batches:
        return None
    optimizer = OptimizerSettings(
        learning_rate=parameters.lr,
        beta1=parameters.beta1,
        beta2=parameters.beta2,
        weight_decay=parameters.weight_decay,
        max_grad_norm=parameters.max_grad_norm,
    )
    name = _LOSSES.get(parameters.policy_loss, parameters.policy_loss)
    loss = ServiceLoss(name, _loss_config(parameters), of_sampler=True)
    optimizers = [optimizer] * len(batches)
    return TrainingSteps(examples, batches, optimizers, loss, parameters.micro_batch_size)


def _loss_config(parameters: PureTextGrpoParameters) -> Mapping[str, float]:
    if parameters.policy_loss in ("importance_sampling", "reinforce"):
        return {}
    return {
        "clip_low_threshold": 1 - parameters.clip_low,
        "clip_high_threshold": 1 + parameters.clip_high,
    }


def _examples(
    batch: Sequence[Trajectory], parameters: PureTextGrpoParameters, longest_reply: int
) -> list[TrainingExample]:
    """Return the examples of a step, weighted so that their sum is the loss."""
    num_tokens = sum(one.num_written for one in batch)
    constant = parameters.aggregation_constant or longest_reply

    def weight(one: Trajectory) -> float:
        return {
            "token_mean": 1 / num_tokens,
            "sequence_mean_token_mean": 1 / (len(batch) * one.num_written),
            "sequence_mean_token_sum": 1 / len(batch),
            "constant": 1 / (len(batch) * constant),
        }[parameters.aggregation]

    return [
        TrainingExample(
            tokens=tuple(one.tokens),
            loss_mask=tuple(one.loss_mask),
            weights=tuple(weight(one) * shown for shown in one.loss_mask),
            advantages=tuple(one.advantage * shown for shown in one.loss_mask),
            log_probs=tuple(one.logprobs),
        )
        for one in batch
        if one.advantage
    ]
