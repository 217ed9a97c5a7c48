"""Registry of fine-tuning backends; a custom one is given as ``path/to/file.py:Class``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ratchet.errors import ParameterError
from ratchet.parameters.chat_agents import FineTuningServiceParameters
from ratchet.registry import Registry

if TYPE_CHECKING:
    from ratchet.language_models.endpoints import Endpoint
    from ratchet.language_models.fine_tuning_backends.base import FineTuningBackend
    from ratchet.parameters.chat_agents import TextAgentParameters

_Backend = TypeVar("_Backend", bound="type[FineTuningBackend]")

TUNING_BACKENDS: Registry[FineTuningBackend] = Registry(
    "tuning_backend",
    "ratchet.language_models.fine_tuning_backends.base:FineTuningBackend",
    "ratchet.language_models.fine_tuning_backends",
    parameter="fine_tuning_service.backend",
)


def register_tuning_backend(name: str) -> Callable[[_Backend], _Backend]:
    """Register a backend under a name for ``fine_tuning_service.backend``.

    Raises
    ------
    ParameterError
        If another class has the name.
    """
    return TUNING_BACKENDS.register(name)


def tuning_backend_class(
    endpoint: Endpoint, service: FineTuningServiceParameters, base_dir: str | None = None
) -> type[FineTuningBackend]:
    """Return the configured backend class, or the one that fits the endpoint.

    The path of a custom one is relative to ``base_dir``.
    """
    name = service.backend
    if name is None:
        name = "ratchet" if endpoint.is_embedded else "azure" if endpoint.api_version else "openai"
    return TUNING_BACKENDS.find(name, base_dir)


def build_tuning_backend(
    endpoint: Endpoint,
    service: FineTuningServiceParameters | None = None,
    base_dir: str | None = None,
) -> FineTuningBackend:
    """Build the backend of an endpoint."""
    service = service or FineTuningServiceParameters()
    return tuning_backend_class(endpoint, service, base_dir)(endpoint, service)


def check_tuning(
    agent: str, parameters: TextAgentParameters, endpoint: Endpoint, base_dir: str | None = None
) -> None:
    """Check that a backend supports an agent's parameters."""
    backend_class = tuning_backend_class(endpoint, parameters.fine_tuning_service, base_dir)
    for section, known in (
        ("fine_tuning_service", backend_class.reads | {"backend"}),
        ("fine_tuning", backend_class.hyper_parameters | {"seed"}),
    ):
        section_values = getattr(parameters, section).model_dump(exclude_none=True)
        unread = sorted(section_values.keys() - known)
        if unread:
            raise ParameterError(
                f"agents.{agent}.{section}: got {', '.join(unread)}, which {backend_class.__name__}"
                f" does not read; expected only {', '.join(sorted(known))}."
            )
