"""The base of all parameter sections, and the registry that plug-ins add theirs to.

Light on purpose: pydantic only, since the command line stands on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Unpack

from pydantic import BaseModel, ConfigDict

from ratchet.errors import ParameterError
from ratchet.parameters.purposes import EVERYTHING, Purpose, declared_purposes

if TYPE_CHECKING:
    from ratchet.parameters.test_groups import TestGroups


class SubParameters(BaseModel):
    """A section of the hyper-parameters: frozen, no unknown keys, defaults checked.

    ``read_for`` is what the fields that a class defines are read for, those aside that say it
    themselves. Every stage reads a field of which nothing is said.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
    _read_for: ClassVar[tuple[Purpose, ...]] = ()

    def __init_subclass__(
        cls, *, read_for: Purpose | tuple[Purpose, ...] = (), **kwargs: Unpack[ConfigDict]
    ) -> None:
        super().__init_subclass__(**kwargs)
        cls._read_for = (read_for,) if isinstance(read_for, Purpose) else read_for

    def to_dict(self) -> dict[str, Any]:
        """Return all values as plain JSON-compatible data."""
        return self.model_dump(mode="json")

    def unread(self) -> Collection[str]:
        """Return the fields that nobody reads while others are as they are; none by default.

        Single fields are believed of Ratchet's own trainers only: another may read them all the
        same. A section that lists all its fields is switched off.
        """
        return ()

    def test_groups(self) -> tuple[TestGroups, ...]:
        """Return kinds of datapoints whose accuracy is reported apart; none by default."""
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
        """Return whether an experiment of these three may read the section."""
        return (
            self.may_be_read("trainers", trainer)
            and self.may_be_read("protocols", protocol)
            and self.may_be_read("scenarios", scenario)
        )

    def may_be_read(self, kind: Literal["trainers", "protocols", "scenarios"], name: str) -> bool:
        """Return whether one reader of a kind may read the section."""
        names = names_of_scenario(name) if kind == "scenarios" else {name}
        readers = getattr(self, kind)
        if not readers or names.intersection(readers):
            return True
        return not any(names.intersection(getattr(each, kind)) for each in SECTIONS.values())

    @cached_property
    def purposes(self) -> dict[str, frozenset[Purpose]]:
        """What each field is read for; everything, where it says nothing.

        But for the data only where the section may be the scenario's: it names scenarios, or
        neither trainers nor protocols.
        """
        may_be_scenarios = self.scenarios or not (self.trainers or self.protocols)
        undeclared = EVERYTHING if may_be_scenarios else EVERYTHING - {Purpose.DATA}
        declared = declared_purposes(self.model)
        return {name: its or undeclared for name, its in declared.items()}


def names_of_scenario(scenario: str) -> set[str]:
    """Return what sections may call a scenario: what experiments do, and what its file says."""
    return {scenario, *SCENARIO_NAMES.get(scenario, ())}


SECTIONS: dict[str, Section] = {}
AGENT_MODELS: dict[str, type[SubParameters]] = {}
SCENARIO_NAMES: dict[str, tuple[str, ...]] = {}
"""``path/to/file.py:ClassName`` of a scenario → the names that its class has registered."""

_Model = TypeVar("_Model", bound=type[SubParameters])


def register_parameters(
    name: str,
    *,
    trainers: tuple[str, ...] = (),
    protocols: tuple[str, ...] = (),
    scenarios: tuple[str, ...] = (),
) -> Callable[[_Model], _Model]:
    """Add a section to the hyper-parameters, by its name at the top of an experiment file.

    Trainers, protocols and scenarios are those whose results can depend on it; everybody's when
    empty. A section that does not concern an experiment is left out of its stages' keys. Which
    stages read a field is said at the field (:mod:`ratchet.parameters.purposes`); all, where
    nothing is said.

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
    """Return a decorator that has a model describe an agent of a scenario."""

    def decorate(model: _Model) -> _Model:
        AGENT_MODELS[scenario] = model
        return model

    return decorate
