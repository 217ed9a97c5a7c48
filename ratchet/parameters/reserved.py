"""Parameters whose names are reserved for what is still to be built: used, they are errors.

A value that nothing reads would be a silent lie about what was run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError
from ratchet.parameters.agents import DEFAULT_AGENT

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings

_SETTINGS = (
    "pin_memory",
    "profiler",
)


def refuse_reserved_parameters(hyper_params: HyperParameters) -> None:
    """Refuse hyper-parameters that nothing reads yet.

    Raises
    ------
    ParameterError
        With the dotted path and the value.
    """
    if hyper_params.message_regression.enabled:
        raise _reserved("message_regression.enabled", True)


def refuse_reserved_settings(settings: ExperimentSettings) -> None:
    """Refuse settings that nothing reads yet, unless they have their default.

    Raises
    ------
    ParameterError
        With the dotted path and the value.
    """
    for name in _SETTINGS:
        value = getattr(settings, name)
        if value != type(settings).model_fields[name].default:
            raise _reserved(f"settings.{name}", value)


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
    """Say whether the agents of an experiment are chat models."""
    return bool(hyper_params.agents[DEFAULT_AGENT].is_text)


def _reserved(path: str, value: object) -> ParameterError:
    return ParameterError(
        f"{path}: got {value!r}, but this is not available in this version; expected its default."
        " Leave it out."
    )
