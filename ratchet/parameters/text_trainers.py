"""Sections that text trainers read. How much is sampled and how often stands in ``rl``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from ratchet.errors import ParameterError
from ratchet.parameters.base import SubParameters, register_parameters
from ratchet.parameters.purposes import Purpose

TEXT_TRAINERS = ("pure_text_ei", "pure_text_malt")


@register_parameters("text_rl", trainers=TEXT_TRAINERS)
class TextRlParameters(SubParameters, read_for=Purpose.FINE_TUNING):
    """What all text trainers share.

    Of ``rl`` they read ``rollouts_per_iteration`` and ``num_iterations``. In training each
    datapoint is played ``rollouts_per_datapoint`` times in an iteration; so is each of the
    training set where the number of rollouts isn't given. ``test_scheme`` says in which iterations
    the agents are tested; after the last one they always are.
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


def count_rollouts(
    text_rl: TextRlParameters, rollouts_per_iteration: int | None, num_train: int
) -> int:
    """Return the number of an iteration's rollouts, of a training set of ``num_train`` datapoints.

    Raises
    ------
    ParameterError
        If those asked for are no multiple of what each datapoint has.
    """
    each = text_rl.rollouts_per_datapoint
    if rollouts_per_iteration is None:
        return num_train * each
    if rollouts_per_iteration % each:
        raise ParameterError(
            f"rl.rollouts_per_iteration: got {rollouts_per_iteration}, expected a multiple of"
            f" text_rl.rollouts_per_datapoint, {each}."
        )
    return rollouts_per_iteration


@register_parameters("pure_text_ei", trainers=("pure_text_ei",))
class PureTextEiParameters(SubParameters, read_for=Purpose.FINE_TUNING):
    """Expert iteration: which rollouts an agent learns from, by its own reward in each.

    Before that, datapoints are left out whose pass rate, the share of their rollouts in which the
    verifier was right, is below ``min_pass_rate`` or above ``max_pass_rate``: with
    ``text_rl.rollouts_per_datapoint`` above 1, what is always or hardly ever right teaches little.
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
    """

    num_responses_per_timestep: int = Field(default=2, ge=2)
