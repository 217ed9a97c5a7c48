"""Settings that nothing would read in an experiment: used, they are errors, not ignored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError
from ratchet.parameters.agents import DEFAULT_AGENT

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings


def refuse_unread_budget(
    settings: ExperimentSettings, all_hyper_params: Iterable[HyperParameters]
) -> None:
    """Refuse a budget where no agent can spend anything.

    Raises
    ------
    ParameterError
        With the dotted path and the value.
    """
    if settings.budget is not None and not any(map(plays_text, all_hyper_params)):
        raise ParameterError(
            f"settings.budget: got {settings.budget!r}, but no agent of this experiment asks a"
            " service that costs money; expected none. Leave it out."
        )


def plays_text(hyper_params: HyperParameters) -> bool:
    """Return whether the agents of an experiment are chat models."""
    return bool(hyper_params.agents[DEFAULT_AGENT].is_text)
