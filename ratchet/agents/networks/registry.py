"""Custom bodies by name, by file and by entry point, instead of a scenario's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ratchet.errors import RatchetError
from ratchet.registry import Registry

if TYPE_CHECKING:
    from ratchet.agents.parts import AgentBody
    from ratchet.parameters.agents import AgentParameters

_Body = TypeVar("_Body", bound="type[AgentBody]")
_Class = TypeVar("_Class")

NETWORKS: Registry[AgentBody] = Registry("network", "ratchet.agents.parts:AgentBody")


def register_network(name: str) -> Callable[[_Body], _Body]:
    """Register a body under a name, for an agent's ``network`` in experiment files.

    Raises ParameterError if another class has the name.
    """
    return NETWORKS.register(name)


def agent_class(
    registry: Registry[_Class],
    agent: str,
    parameters: AgentParameters,
    base_dir: Path | None = None,
) -> type[_Class] | None:
    """Return the class that an agent's parameter with the registry's name names; None without."""
    reference: str | None = getattr(parameters, registry.kind, None)
    if reference is None:
        return None
    try:
        return registry.find(reference, base_dir)
    except RatchetError as error:
        reason = str(error).removeprefix(f"{registry.kind}: ")
        raise type(error)(f"agents.{agent}.{registry.kind}: {reason}") from error
