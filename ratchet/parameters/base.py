"""The base of all parameter sections, and the registry that plug-ins add theirs to.

Light on purpose: pydantic only, since the command line stands on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict

from ratchet.errors import ParameterError

if TYPE_CHECKING:
    from ratchet.parameters.test_groups import TestGroups


class SubParameters(BaseModel):
    """A section of the hyper-parameters: frozen, no unknown keys, defaults checked."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    def to_dict(self) -> dict[str, Any]:
        """Return all values as plain JSON-compatible data."""
        return self.model_dump(mode="json")

    def test_groups(self) -> tuple[TestGroups, ...]:
        """List kinds of datapoints whose accuracy is reported apart; none by default."""
        return ()


@dataclass(frozen=True)
class Section:
    """A registered section and who reads it.

    An empty tuple means that everybody may read it. So may whoever no section names: of a
    user's own trainer nothing is known, and leaving out what it reads would be a wrong hit.
    """

    name: str
    model: type[SubParameters]
    trainers: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()

    def concerns(self, *, trainer: str, protocol: str, scenario: str) -> bool:
        """Say whether an experiment of these three may read the section."""
        return (
            _may_read(trainer, self.trainers, "trainers")
            and _may_read(protocol, self.protocols, "protocols")
            and _may_read(scenario, self.scenarios, "scenarios")
        )


def _may_read(name: str, readers: tuple[str, ...], kind: str) -> bool:
    if not readers or name in readers:
        return True
    return not any(name in getattr(section, kind) for section in SECTIONS.values())


SECTIONS: dict[str, Section] = {}
AGENT_MODELS: dict[str, type[SubParameters]] = {}

_Model = TypeVar("_Model", bound=type[SubParameters])


def register_parameters(
    name: str,
    *,
    trainers: tuple[str, ...] = (),
    protocols: tuple[str, ...] = (),
    scenarios: tuple[str, ...] = (),
) -> Callable[[_Model], _Model]:
    """Add a section to the hyper-parameters.

    Parameters
    ----------
    name
        The section's name at the top of an experiment file.
    trainers, protocols, scenarios
        Whose results can depend on the section; everybody's when empty. A section that
        does not concern an experiment is left out of its stages' keys.

    Raises
    ------
    ParameterError
        If another class has taken the name.
    """

    def decorate(model: _Model) -> _Model:
        known = SECTIONS.get(name)
        if known is not None and known.model.__qualname__ != model.__qualname__:
            raise ParameterError(
                f"section {name!r} is taken by {known.model.__module__}.{known.model.__qualname__};"
                f" got {model.__module__}.{model.__qualname__}. Choose another name."
            )
        SECTIONS[name] = Section(name, model, trainers, protocols, scenarios)
        return model

    return decorate


def register_agent_parameters(scenario: str) -> Callable[[_Model], _Model]:
    """Say which model describes an agent of a scenario."""

    def decorate(model: _Model) -> _Model:
        AGENT_MODELS[scenario] = model
        return model

    return decorate
