"""Sections of text trainers; ``rl`` sets the numbers of rollouts and iterations."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from ratchet.errors import ParameterError
from ratchet.parameters.base import SubParameters, register_parameters
from ratchet.parameters.purposes import Purpose

TEXT_TRAINERS = ("pure_text_ei", "pure_text_grpo", "pure_text_malt")


@register_parameters("text_rl", trainers=TEXT_TRAINERS)
class TextRlParameters(SubParameters, read_for=Purpose.FINE_TUNING):
    """Parameters of all text trainers.

    They read ``rl.rollouts_per_iteration`` and ``rl.num_iterations``. A training iteration has
    ``rollouts_per_datapoint`` rollouts of each of its datapoints; if the number of rollouts is not
    given, of the complete training set. ``test_scheme`` selects the iterations in which the agents
    are tested; they are always tested after the last one. A test has
    ``test_rollouts_per_datapoint`` rollouts of each datapoint: several distinguish consistent
    failures from occasional ones.

    - ``fine_tune_on_all_previous_rollouts``: fine-tune on the rollouts of all iterations so far.
    - ``verifier_guess_replacement_proportion``: initial share of the rollouts in a verifier's
      fine-tuning data whose decision is replaced by the label; for ``pure_text_ei``.
    - ``verifier_guess_replacement_annealing``: decrease over the iterations of the share of
      replaced decisions in a verifier's fine-tuning data; for ``pure_text_ei``.
    - ``verifier_guess_replacement_annealing_rate``: decrease in an iteration of the share of
      replaced decisions in a verifier's fine-tuning data, absolute if ``linear`` and relative if
      ``exponential``; for ``pure_text_ei``.
    - ``save_transcripts``: save transcripts in the run folder.
    - ``transcript_format``: file format of transcripts.
    - ``test_on_whole_dataset``: test on all test datapoints, instead of the number in an iteration.
    """

    rollouts_per_datapoint: Annotated[PositiveInt, Purpose.ROLLOUTS] = 1
    fine_tune_on_all_previous_rollouts: bool = False
    verifier_guess_replacement_proportion: float = Field(default=0.0, ge=0, le=1)
    verifier_guess_replacement_annealing: Literal["none", "linear", "exponential"] = "none"
    verifier_guess_replacement_annealing_rate: float = Field(default=0.1, ge=0, le=1)
    save_transcripts: Annotated[bool, Purpose.REPORTS] = True
    transcript_format: Annotated[Literal["yaml", "json"], Purpose.REPORTS] = "yaml"
    test_scheme: Annotated[Literal["none", "all", "last", "first_and_last"], Purpose.ORDER] = "none"
    test_on_whole_dataset: Annotated[bool, Purpose.CHAT_TESTS] = True
    test_rollouts_per_datapoint: Annotated[PositiveInt, Purpose.CHAT_TESTS] = 1

    def unread(self) -> Collection[str]:
        """Return later additions at their defaults, which keep earlier keys valid."""
        return ("test_rollouts_per_datapoint",) if self.test_rollouts_per_datapoint == 1 else ()


def count_rollouts(
    text_rl: TextRlParameters, rollouts_per_iteration: int | None, num_train: int
) -> int:
    """Return an iteration's number of rollouts for a training set of ``num_train`` datapoints."""
    each = text_rl.rollouts_per_datapoint
    if rollouts_per_iteration is None:
        return num_train * each
    if rollouts_per_iteration % each:
        raise ParameterError(
            f"rl.rollouts_per_iteration: got {rollouts_per_iteration}, expected a multiple of"
            f" text_rl.rollouts_per_datapoint, {each}."
        )
    return rollouts_per_iteration


def count_tests(text_rl: TextRlParameters, per_iteration: int, num_test: int) -> int:
    """Return the number of a test's rollouts; ``per_iteration`` is that of a training iteration."""
    datapoints = per_iteration // text_rl.rollouts_per_datapoint
    tested = num_test if text_rl.test_on_whole_dataset else min(datapoints, num_test)
    return tested * text_rl.test_rollouts_per_datapoint


@register_parameters("pure_text_ei", trainers=("pure_text_ei",))
class PureTextEiParameters(SubParameters, read_for=Purpose.FINE_TUNING):
    """Expert iteration: an agent learns from rollouts selected by its own reward.

    A datapoint's pass rate is the share of its rollouts in which the verifier is correct. With
    ``text_rl.rollouts_per_datapoint`` above 1, datapoints that are nearly always or never solved
    teach little.

    - ``rollout_selection_method``: selection of rollouts by reward.
    - ``reward_threshold``: minimum reward of rollouts that ``threshold`` selects.
    - ``weighting_sample_size_factor``: number of sampled rollouts as a share of all.
    - ``weighting_use_replacement``: allow a rollout to be sampled more than once.
    - ``weighting_minimum``: reward that gets the smallest weight; the lowest one when not given.
    - ``weighting_epsilon``: weight that is divided equally among all rollouts, relative to 1 for
      the sum of their weights by reward.
    - ``min_pass_rate``: minimum pass rate of a datapoint whose rollouts are used.
    - ``max_pass_rate``: maximum pass rate of a datapoint whose rollouts are used.
    """

    min_pass_rate: float = Field(default=0.0, ge=0, le=1)
    max_pass_rate: float = Field(default=1.0, ge=0, le=1)
    rollout_selection_method: Literal["threshold", "weighted_sampling"] = "threshold"
    reward_threshold: float = 0.9
    weighting_sample_size_factor: PositiveFloat = 0.5
    weighting_use_replacement: bool = True
    weighting_minimum: float | None = None
    weighting_epsilon: float = Field(default=0.01, ge=0)

    @model_validator(mode="after")
    def _check_pass_rates(self) -> Self:
        if self.min_pass_rate > self.max_pass_rate:
            raise ValueError(
                "expected min_pass_rate <= max_pass_rate, got"
                f" {self.min_pass_rate} > {self.max_pass_rate}"
            )
        return self

    @model_validator(mode="after")
    def _check_sample_size(self) -> Self:
        if not self.weighting_use_replacement and self.weighting_sample_size_factor > 1:
            raise ValueError(
                "expected weighting_sample_size_factor <= 1 without replacement, got"
                f" {self.weighting_sample_size_factor}"
            )
        return self


@register_parameters("pure_text_malt", trainers=("pure_text_malt",))
class PureTextMaltParameters(SubParameters, read_for=(Purpose.BRANCHES, Purpose.FINE_TUNING)):
    """Trees of rollouts: ``rl.rollouts_per_iteration`` counts trees, one for each datapoint.

    A tree has at most ``num_responses_per_timestep ** max_message_rounds`` leaves.

    - ``num_responses_per_timestep``: number of replies at each node of a tree.
    """

    num_responses_per_timestep: int = Field(default=2, ge=2)


@register_parameters("pure_text_grpo", trainers=("pure_text_grpo",))
class PureTextGrpoParameters(SubParameters, read_for=Purpose.FINE_TUNING):
    """Policy gradients on chat models' tokens, in training sessions of their service.

    The advantage of an agent in a rollout is its reward minus a ``baseline``: its running average
    over iterations (with weight ``baseline_decay``; suits zero-sum games), or the mean of its
    rollouts of the same datapoint, with or without this one, for which
    ``text_rl.rollouts_per_datapoint`` must be above 1. It is divided by the deviation of its
    rollouts in the iteration (``batch``) or of those of the datapoint (``group``), by the latter's
    mean, or not at all. All replies of a rollout have its advantage.

    ``redraws`` maps agents to numbers of alternatives: each turn of such an agent is sampled again
    that often from the same prefix, and continued with the random numbers of the original rollout.
    The advantage of each of its draws is the reward minus the mean of the turn's other draws
    (:mod:`ratchet.algorithms.replayed_credit`); ``baseline`` applies to the other agents.

    ``policy_loss``, ``clip_low``, ``clip_high`` and ``aggregation`` are as those of ``grpo``; the
    constant is the most tokens of a reply when not given. Each of ``num_epochs`` passes has a step
    of Adam for each ``batch_size`` replies (all when not given), sent ``micro_batch_size`` at a
    time; its moments persist across iterations. Training continues from the last model, with an
    adapter if ``agents.NAME.fine_tuning.lora_rank`` is set; ``fine_tuning.lora_rank`` and
    ``fine_tuning.seed`` are read, other fields of ``fine_tuning`` and ``fine_tune_from_scratch``
    are not.

    - ``lr``: learning rate of Adam.
    - ``beta1``: decay rate of Adam's first moment.
    - ``beta2``: decay rate of Adam's second moment.
    - ``weight_decay``: decoupled weight decay.
    - ``max_grad_norm``: norm that gradients are clipped to; 0: no clipping.
    - ``baseline``: value that is subtracted from a reward.
    - ``advantage_scale``: value that advantages are divided by.
    - ``policy_loss``: loss of the policy, as in ``grpo``.
    - ``clip_low``: distance of the lower clipping bound from 1.
    - ``clip_high``: distance of the upper clipping bound from 1.
    - ``aggregation``: average of the losses of tokens, as in ``grpo``.
    - ``aggregation_constant``: divisor of ``constant``; the maximum tokens of a reply when not
      given.
    - ``num_epochs``: number of passes over an iteration's replies.
    - ``batch_size``: number of replies of an optimizer step; all when not given.
    - ``micro_batch_size``: number of replies of a request.
    """

    lr: PositiveFloat = 1e-4
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: NonNegativeFloat = 1.0
    baseline: Literal["agent_average", "mean", "leave_one_out"] = "agent_average"
    baseline_decay: float = Field(default=0.9, ge=0, lt=1)
    redraws: Annotated[dict[str, PositiveInt], Purpose.BRANCHES, Purpose.FINE_TUNING] = Field(
        default_factory=dict
    )
    advantage_scale: Literal["batch", "group", "none", "mean"] = "batch"
    policy_loss: Literal["clip", "gspo", "cispo", "importance_sampling", "reinforce"] = "clip"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = 0.2
    aggregation: Literal[
        "token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"
    ] = "token_mean"
    aggregation_constant: PositiveInt | None = None
    num_epochs: PositiveInt = 1
    batch_size: PositiveInt | None = None
    micro_batch_size: PositiveInt = 64

    @property
    def compares_rollouts(self) -> bool:
        """Whether advantages need several rollouts of a datapoint."""
        return self.baseline != "agent_average" or self.advantage_scale in ("group", "mean")

    def unread(self) -> Collection[str]:
        """Return the fields that the loss and the baseline do not use."""
        unread = set()
        if self.policy_loss in ("importance_sampling", "reinforce"):
            unread |= {"clip_low", "clip_high"}
        if self.aggregation != "constant":
            unread.add("aggregation_constant")
        if self.baseline != "agent_average":
            unread.add("baseline_decay")
        return unread

    @model_validator(mode="after")
    def _check_scale(self) -> Self:
        if self.baseline == "agent_average" and self.advantage_scale == "mean":
            raise ValueError(
                "got advantage_scale 'mean' with the baseline 'agent_average', expected the"
                " baseline 'mean' or 'leave_one_out', or another scale"
            )
        return self
