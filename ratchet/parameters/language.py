"""Sections of language trainers, which learn from tokens and their log-probabilities."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from ratchet.parameters.base import Reference, SubParameters, named, register_parameters
from ratchet.parameters.purposes import Purpose
from ratchet.parameters.service_fields import BaseUrl, KeyName

GROUP_TRAINERS = ("grpo", "remote_grpo")
LANGUAGE_TRAINERS = (
    *GROUP_TRAINERS,
    "language_ppo",
    "language_dpo",
    "on_policy_distillation",
    "cross_entropy",
)
RATCHET = "ratchet"
"""The backend of remote trainers: Ratchet's own service."""
TINKER = "tinker"
"""The backend of remote trainers: a ``tinker`` service, called with its own client."""
_PLAYED = (Purpose.ROLLOUTS, Purpose.LEARNING)


class LanguageOptimizerParameters(SubParameters, read_for=Purpose.LEARNING):
    """AdamW (Loshchilov and Hutter 2019) and its learning-rate schedule.

    The rate rises over ``warmup_steps``, then stays constant or falls to 0 in the last iteration.
    Gradients are clipped to a norm of ``max_grad_norm``.

    - ``lr``: learning rate after the warm-up.
    - ``beta1``: decay rate of the first moment.
    - ``beta2``: decay rate of the second moment.
    - ``eps``: term that is added to the denominator.
    - ``weight_decay``: decoupled weight decay.
    - ``schedule``: course of the learning rate after the warm-up.
    """

    lr: PositiveFloat = 1e-3
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat = 1.0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: NonNegativeInt = 0


class FailureParameters(SubParameters, read_for=(*_PLAYED, Purpose.TESTS)):
    """Handling of failed episodes, whose environment or evaluator raised an error.

    ``fail_fast`` ends the stage; ``retry`` repeats the episode up to ``retries`` times;
    ``at_least`` drops it if ``at_least`` episodes of its group are left. Dropped episodes are
    counted.

    - ``policy``: reaction to a failed episode.
    - ``retries``: maximum number of repetitions of an episode with ``retry``.
    - ``at_least``: minimum number of remaining episodes of a group with ``at_least``.
    """

    policy: Literal["fail_fast", "retry", "at_least"] = "fail_fast"
    retries: PositiveInt = 3
    at_least: PositiveInt = 2

    def unread(self) -> Collection[str]:
        """Return the fields that the policy does not use."""
        return {"retries", "at_least"} - {{"retry": "retries"}.get(self.policy, self.policy)}


class TrainServiceParameters(SubParameters, read_for=Purpose.LEARNING):
    """The service that trains a remote trainer's model.

    - ``backend``: kind of service: ``self-hosted`` trains in the run's process, or in
      ``world_size`` processes; ``ratchet`` is the embedded service, or a Ratchet service at
      ``url``; ``tinker`` is a service called with the ``tinker`` client.
    - ``url``: address of the service; when not given, the embedded service for ``ratchet`` and the
      client's own address for ``tinker``.
    - ``world_size``: number of processes of ``self-hosted`` that share the model, each on a CUDA
      device or on the CPU.
    - ``config``: may have ``loss_fn``, a loss of the service, with its ``loss_config``,
      ``learning_rate``, and for ``tinker`` the folder of the ``tokenizer``.
    - ``api_key_name``: environment variable with the service's key.
    """

    backend: str = Field(default="self-hosted", min_length=1)
    url: Annotated[BaseUrl, Purpose.NOTHING] = None
    api_key_name: Annotated[KeyName, Purpose.NOTHING] = None
    world_size: PositiveInt = 1
    config: dict[str, JsonValue] = Field(default_factory=dict)


@register_parameters("language", trainers=LANGUAGE_TRAINERS)
class LanguageParameters(SubParameters, read_for=Purpose.LEARNING):
    """Parameters of all language trainers, which also read ``rl.num_iterations``.

    An iteration collects ``group_size`` rollouts of each of ``tasks_per_step`` tasks and learns
    from them: in ``num_epochs`` passes, with a step of the optimizer for each ``minibatch_size``
    trajectories (all when not given), of which ``micro_batch_size`` are in memory at a time (all,
    or on a GPU as many tokens as fit, when not given).
    Trajectories are truncated to ``max_sequence_length`` tokens, prompt included, before they are
    scored. ``mode``: ``one_step_behind`` collects the next iteration's rollouts during the current
    update, so they use the weights of the previous iteration. ``engine`` generates the completions:
    ``in_process``, ``vllm``, or ``path/to/file.py:Class``; its arguments are given next to its
    ``name``. The dataset ``validation`` is evaluated after every ``validate_every`` iterations.
    ``algorithm`` is for custom trainers.

    - ``group_size``: number of rollouts of each task in an iteration.
    - ``tasks_per_step``: number of tasks in an iteration.
    - ``num_epochs``: number of passes over an iteration's trajectories.
    - ``minibatch_size``: number of trajectories of an optimizer step; all of the iteration when not
      given.
    - ``micro_batch_size``: number of trajectories in memory at a time; when not given, chosen from
      the GPU's memory.
    - ``failures``: handling of failed episodes.
    - ``optimizer``: optimizer and learning-rate schedule.
    - ``test_temperature``: sampling temperature in tests; 0 is greedy.
    - ``samples_per_test``: number of replies to each test task.
    - ``train_service``: service that trains the model of a remote trainer.
    """

    group_size: Annotated[PositiveInt, *_PLAYED] = 8
    tasks_per_step: Annotated[PositiveInt, *_PLAYED] = 16
    max_sequence_length: Annotated[PositiveInt | None, *_PLAYED, Purpose.TESTS] = None
    failures: Annotated[FailureParameters, *_PLAYED, Purpose.TESTS] = FailureParameters()
    mode: Annotated[Literal["synchronous", "one_step_behind"], *_PLAYED] = "synchronous"
    num_epochs: PositiveInt = 1
    minibatch_size: PositiveInt | None = None
    micro_batch_size: PositiveInt | None = None
    engine: Annotated[Reference, BeforeValidator(named), *_PLAYED, Purpose.TESTS] = Reference(
        name="in_process"
    )
    optimizer: LanguageOptimizerParameters = LanguageOptimizerParameters()
    validate_every: Annotated[PositiveInt | None, Purpose.ORDER] = None
    test_temperature: Annotated[float, Purpose.TESTS] = Field(default=0.0, ge=0, le=2)
    samples_per_test: Annotated[PositiveInt, Purpose.TESTS] = 1
    train_service: TrainServiceParameters = TrainServiceParameters()
    algorithm: dict[str, JsonValue] = Field(default_factory=dict)


class KlParameters(SubParameters, read_for=Purpose.LEARNING):
    """KL penalty towards the initial model, with coefficient ``coef``; 0 disables it.

    ``place``: in the reward, per token, or as a term of the loss. As a reward ``k1`` is unbiased;
    as a loss ``k2`` has the gradient of KL(π‖π_ref) and ``k3`` that of KL(π_ref‖π). With a
    ``target`` the coefficient is adapted so that KL(π‖π_ref) of a sequence reaches it, over
    ``horizon`` sequences (Ziegler et al. 2019).

    - ``place``: position of the penalty, in the reward or in the loss.
    - ``estimator``: estimator of the divergence; ``k1`` in the reward and ``k2`` in the loss when
      not given.
    - ``coef``: coefficient of the penalty; 0 disables it.
    - ``target``: divergence of a sequence that the coefficient is adapted to; null: a fixed
      coefficient.
    - ``horizon``: number of sequences over which the coefficient is adapted.
    """

    coef: NonNegativeFloat = 0.0
    place: Literal["reward", "loss"] = "loss"
    estimator: Literal["k1", "k2", "k3"] | None = None
    target: PositiveFloat | None = None
    horizon: PositiveInt = 10_000

    @property
    def kind(self) -> Literal["k1", "k2", "k3"]:
        """The estimator; by default ``k1`` in the reward, ``k2`` in the loss."""
        return self.estimator or ("k1" if self.place == "reward" else "k2")

    def unread(self) -> Collection[str]:
        """Return the fields without effect if there is no penalty or no target."""
        if not self.coef:
            return ("place", "estimator", "target", "horizon")
        return () if self.target else ("horizon",)


PolicyLoss = Literal["clip", "gspo", "cispo", "importance_sampling", "reinforce"]
Aggregation = Literal[
    "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"
]


class PolicyLossParameters(SubParameters, read_for=Purpose.LEARNING):
    """A policy's loss: clipping, weights of tokens, and additional terms.

    ``clip`` is PPO's, with bounds 1 − ``clip_low`` and 1 + ``clip_high``; with ``dual_clip`` c also
    at c for negative advantages (Ye et al. 2020). ``gspo`` clips the ratio of a sequence (Zheng et
    al. 2025), ``cispo`` weights by the clipped ratio (MiniMax 2025). ``aggregation``: a mean over
    all tokens; over sequences of their tokens' mean; of their tokens' sum; or, for ``constant``, of
    their sum over ``aggregation_constant`` (the most tokens of a reply when not given).
    ``sampler_correction`` weights tokens, or sequences, by the ratio of the trainer's to the
    sampler's probabilities, at most ``sampler_cap``. By default, rollouts collected one step behind
    or by vLLM, which rounds differently, are corrected: by sequence with ``gspo``, whose gradient
    has one factor for all tokens of a sequence, else by token.

    - ``policy_loss``: loss of the policy.
    - ``clip_low``: distance of the lower clipping bound from 1.
    - ``clip_high``: distance of the upper clipping bound from 1.
    - ``aggregation``: average of the losses of tokens.
    - ``sampler_correction``: unit of the correction for different probabilities in sampling and
      training.
    - ``entropy_coef``: coefficient of the entropy bonus.
    - ``kl``: KL penalty towards the initial model.
    """

    policy_loss: PolicyLoss = "clip"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    dual_clip: float | None = Field(default=None, gt=1)
    aggregation: Aggregation = "sequence_mean_token_mean"
    aggregation_constant: PositiveInt | None = None
    sampler_correction: Literal["none", "token", "sequence"] | None = None
    sampler_cap: PositiveFloat = 2.0
    entropy_coef: NonNegativeFloat = 0.0
    kl: KlParameters = KlParameters()

    def unread(self) -> Collection[str]:
        """Return the fields that the loss does not use."""
        unread = set()
        if self.policy_loss in ("importance_sampling", "reinforce"):
            unread |= {"clip_low", "clip_high"}
        if self.policy_loss != "clip":
            unread.add("dual_clip")
        if self.aggregation != "constant":
            unread.add("aggregation_constant")
        if self.sampler_correction == "none":
            unread.add("sampler_cap")
        return unread


_GRPO: dict[str, Any] = {
    "baseline": "mean",
    "advantage_scale": "group",
    "policy_loss": "clip",
    "clip_low": 0.2,
    "clip_high": 0.2,
    "aggregation": "sequence_mean_token_mean",
    "dynamic_sampling": False,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": _GRPO,
    "dr_grpo": {**_GRPO, "advantage_scale": "none", "aggregation": "constant"},
    "dapo": {**_GRPO, "clip_high": 0.28, "aggregation": "token_mean", "dynamic_sampling": True},
    "gspo": {**_GRPO, "policy_loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4},
    "rloo": {
        **_GRPO,
        "baseline": "leave_one_out",
        "advantage_scale": "none",
        "policy_loss": "importance_sampling",
        "aggregation": "sequence_mean_token_sum",
    },
    "reinforce_plus_plus": {
        **_GRPO,
        "baseline": "batch_mean",
        "advantage_scale": "batch",
        "aggregation": "token_mean",
    },
}
"""Settings of the variants of GRPO, as in their papers."""


@register_parameters("grpo", trainers=GROUP_TRAINERS)
class GrpoParameters(PolicyLossParameters, read_for=Purpose.LEARNING):
    """Group relative policy optimisation (Shao et al. 2024) and its variants.

    ``variant`` sets the parameters that are not given: ``dr_grpo`` (Liu et al. 2025), ``dapo`` (Yu
    et al. 2025), ``gspo`` (Zheng et al. 2025), ``rloo`` (Ahmadian et al. 2024),
    ``reinforce_plus_plus`` (Hu 2025; its penalty is ``kl: {coef: …, place: reward}``). A
    completion's advantage is its reward minus a ``baseline``: the mean of its group, of the rest of
    its group, of the batch, or its agent's running average (with weight ``baseline_decay``; for
    self-play); divided by the standard deviation of its group or of the batch, by the group's mean,
    or not at all. ``dynamic_sampling`` replaces groups with equal rewards by further tasks, up to
    ``max_resamples`` times.

    ``redraws`` maps agents to numbers of alternatives: each turn of such an agent is sampled again
    that often from the same prefix, and continued with the random numbers of the original rollout.
    The advantage of each of its draws is the reward minus the mean of the turn's other draws
    (:mod:`ratchet.algorithms.replayed_credit`), divided as others; ``baseline`` applies to the
    other agents.

    - ``baseline``: value that is subtracted from a reward.
    - ``advantage_scale``: value that advantages are divided by.
    - ``dynamic_sampling``: replace groups with equal rewards by further tasks.
    - ``max_resamples``: maximum number of replacements of a group.
    - ``redraws``: number of times that each turn of an agent is sampled again, by agent.
    """

    variant: Annotated[
        Literal["grpo", "dr_grpo", "dapo", "gspo", "rloo", "reinforce_plus_plus"], *_PLAYED
    ] = "grpo"
    baseline: Literal["mean", "leave_one_out", "batch_mean", "agent_average"] | None = None
    baseline_decay: float = Field(default=0.9, ge=0, lt=1)
    advantage_scale: Literal["group", "batch", "none", "mean"] | None = None
    policy_loss: PolicyLoss | None = None  # type: ignore[assignment] # until settled
    clip_low: PositiveFloat | None = None  # type: ignore[assignment]
    clip_high: PositiveFloat | None = None  # type: ignore[assignment]
    aggregation: Aggregation | None = None  # type: ignore[assignment]
    dynamic_sampling: Annotated[bool | None, *_PLAYED] = None
    max_resamples: Annotated[PositiveInt, *_PLAYED] = 3
    redraws: Annotated[dict[str, PositiveInt], *_PLAYED] = Field(default_factory=dict)

    @property
    def settled(self) -> Self:
        """The parameters with the variant's values filled in."""
        decided = VARIANTS[self.variant]
        open_ = {name: decided[name] for name in decided if getattr(self, name) is None}
        return self.model_copy(update=open_)

    def unread(self) -> Collection[str]:
        """Return the fields that the loss and the baseline do not use."""
        settled = self.settled
        unread = {*PolicyLossParameters.unread(settled)}
        if settled.baseline != "agent_average":
            unread.add("baseline_decay")
        if not settled.dynamic_sampling:
            unread.add("max_resamples")
        if not settled.redraws:
            unread.add("redraws")
        return unread


@register_parameters("language_ppo", trainers=("language_ppo",))
class LanguagePpoParameters(PolicyLossParameters, read_for=Purpose.LEARNING):
    """Token-level proximal policy optimisation (Schulman et al. 2017) with a value head.

    The head uses the model's last layer; its loss, of weight ``critic_coef``, may be clipped around
    the values before the step. Advantages are whitened over all tokens.

    - ``gamma``: discount factor of later rewards.
    - ``lmbda``: parameter λ of generalised advantage estimation.
    - ``value_clip``: maximum distance of a credited value from the one before the step; null:
      unbounded.
    - ``whiten``: normalise advantages over all tokens.
    """

    aggregation: Aggregation = "token_mean"
    gamma: float = Field(default=1.0, ge=0, le=1)
    lmbda: float = Field(default=0.95, ge=0, le=1)
    critic_coef: NonNegativeFloat = 0.5
    value_clip: PositiveFloat | None = 0.2
    whiten: bool = True


@register_parameters("language_dpo", trainers=("language_dpo",))
class LanguageDpoParameters(SubParameters, read_for=Purpose.LEARNING):
    """Direct preference optimisation (Rafailov et al. 2023) on an iteration's completions.

    The best and the worst completion of a group are a pair; groups with equal rewards have none.

    - ``beta``: weight of the KL divergence from the initial model; larger values stay closer to it.
    """

    beta: PositiveFloat = 0.1


@register_parameters("on_policy_distillation", trainers=("on_policy_distillation",))
class DistillationParameters(PolicyLossParameters, read_for=Purpose.LEARNING):
    """On-policy distillation: tokens are rewarded by a teacher's log-probabilities.

    A token's advantage is −``coef``·(log π − log π_teacher), plus those of later tokens discounted
    by ``discount``. ``teacher`` is a model's folder or name, with the student's tokenizer.

    - ``discount``: factor on the rewards of later tokens; 0 counts a token's own reward only.
    """

    teacher: str | None = None
    coef: PositiveFloat = 1.0
    discount: float = Field(default=0.0, ge=0, le=1)
    policy_loss: PolicyLoss = "importance_sampling"
    aggregation: Aggregation = "token_mean"


@register_parameters("cross_entropy", trainers=("cross_entropy",))
class CrossEntropyParameters(SubParameters, read_for=Purpose.LEARNING):
    """Cross-entropy on an iteration's completions with a reward of at least ``min_reward``.

    With ``per_group`` also on the best completion of each group.
    """

    min_reward: float = 1.0
    per_group: bool = False
