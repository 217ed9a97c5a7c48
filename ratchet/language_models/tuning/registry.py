"""The registry of tuning backends by name; an own one may be given as ``path/to/file.py:Class``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ratchet.errors import ParameterError
from ratchet.parameters.chat_agents import FineTuningServiceParameters
from ratchet.registry import Registry

if TYPE_CHECKING:
    from ratchet.language_models.endpoints import Endpoint
    from ratchet.language_models.tuning.base import TuningBackend
    from ratchet.parameters.chat_agents import TextAgentParameters

_Backend = TypeVar("_Backend", bound="type[TuningBackend]")

TUNING_BACKENDS: Registry[TuningBackend] = Registry(
    "tuning_backend",
    "ratchet.language_models.tuning.base:TuningBackend",
    "ratchet.language_models.tuning",
    parameter="fine_tuning_service.backend",
)


def register_tuning_backend(name: str) -> Callable[[_Backend], _Backend]:
    """Give a backend the name that ``fine_tuning_service.backend`` has.

    Raises
    ------
    ParameterError
        If another class has taken the name.
    """
    return TUNING_BACKENDS.register(name)


def tuning_backend_class(
    endpoint: Endpoint, service: FineTuningServiceParameters, base_dir: str | None = None
) -> type[TuningBackend]:
    """Find the class of the backend that parameters name, or that fits the endpoint.

    The path of one's own starts from ``base_dir``.

    Raises
    ------
    UnknownNameError
        If there is none of that name; the message has the nearest.
    """
    name = service.backend
    if name is None:
        name = "ratchet" if endpoint.is_embedded else "azure" if endpoint.api_version else "openai"
    return TUNING_BACKENDS.find(name, base_dir)


def build_tuning_backend(
    endpoint: Endpoint,
    service: FineTuningServiceParameters | None = None,
    base_dir: str | None = None,
) -> TuningBackend:
    """Make the backend of an endpoint."""
    service = service or FineTuningServiceParameters()
    return tuning_backend_class(endpoint, service, base_dir)(endpoint, service)


def check_tuning(
    agent: str, parameters: TextAgentParameters, endpoint: Endpoint, base_dir: str | None = None
) -> None:
    """Check that a backend can do what an agent's parameters ask of it.

    Raises
    ------
    ParameterError
        If it does not read a parameter that was set, or its service has no such hyper-parameter.
    """
    found = tuning_backend_class(endpoint, parameters.fine_tuning_service, base_dir)
    for section, known in (
        ("fine_tuning_service", found.reads | {"backend"}),
        ("fine_tuning", found.hyper_parameters | {"seed"}),
    ):
        given = getattr(parameters, section).model_dump(exclude_none=True)
        unread = sorted(given.keys() - known)
        if unread:
            raise ParameterError(
                f"agents.{agent}.{section}: got {', '.join(unread)}, which {found.__name__} doesn't"
                f" read; expected only {', '.join(sorted(known))}."
            )
