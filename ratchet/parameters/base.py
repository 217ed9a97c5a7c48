"""The base of all parameter sections, and the registry that plug-ins add theirs to.

Imports only pydantic, since every command imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Unpack

from pydantic import BaseModel, BeforeValidator, ConfigDict

from ratchet.errors import ParameterError
from ratchet.parameters.purposes import EVERYTHING, Purpose, declared_purposes


class SubParameters(BaseModel):
    """A section of the hyper-parameters: frozen, no unknown keys, defaults checked.

    ``read_for`` gives the purposes of the fields that a class defines, except fields annotated with
    their own. Every stage reads a field without a purpose.
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
        """Return the fields that have no effect given the values of the others; none by default.

        Single fields are left out for Ratchet's trainers only, since a custom trainer may read
        them. A section that lists all its fields is switched off.
        """
        return ()

    def test_groups(self) -> tuple[TestGroups, ...]:
        """Return groups of datapoints whose accuracy is reported separately; none by default."""
        return ()


@dataclass(frozen=True)
class Section:
    """A registered section and its readers.

    An empty tuple means that all may read it. So may any reader that no section names: the fields
    that a custom trainer reads are unknown, and leaving one out would be a wrong cache hit.
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
        """The purposes of each field; all purposes where none is declared.

        ``DATA`` only if the section may be the scenario's: it names scenarios, or neither trainers
        nor protocols.
        """
        may_be_scenarios = self.scenarios or not (self.trainers or self.protocols)
        undeclared = EVERYTHING if may_be_scenarios else EVERYTHING - {Purpose.DATA}
        declared = declared_purposes(self.model)
        return {name: its or undeclared for name, its in declared.items()}


def names_of_scenario(scenario: str) -> set[str]:
    """Return a scenario's names: that in the experiment and those that its class registers."""
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

    ``trainers``, ``protocols`` and ``scenarios`` name those whose results can depend on it; empty
    means all. A section that does not concern an experiment is left out of its stages' keys. The
    annotation of a field declares which stages read it (:mod:`ratchet.parameters.purposes`); by
    default all stages do. Raises ParameterError if another class has the name.
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
    """Return a decorator that registers the model of an agent's parameters in a scenario."""

    def decorate(model: _Model) -> _Model:
        AGENT_MODELS[scenario] = model
        return model

    return decorate


class Reference(SubParameters):
    """A class by name, or by ``path/to/file.py:ClassName``, with its parameters.

    The path is relative to the folder of the experiment file. Stage keys include only the class
    name; the code fingerprint covers the file's content.

    - ``name``: registered name, or ``path/to/file.py:Class``.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @property
    def given(self) -> Mapping[str, Any]:
        """All parameters except the name."""
        return {key: value for key, value in self.to_dict().items() if key != "name"}


def named(value: object) -> object:
    """Read a plain name as a reference without parameters."""
    return {"name": value} if isinstance(value, str) else value


References = tuple[Annotated[Reference, BeforeValidator(named)], ...]
"""A list of classes; a plain name is a class with its default parameters."""


@dataclass(frozen=True)
class TestGroups:
    """A grouping of a scenario's datapoints whose accuracies are reported separately.

    Attributes
    ----------
    name
        Short name used in metric names: "test NAME 2".
    column
        Integer field of the datasets, and column of the tables, that identifies the group.
    title
        Name of the grouping, to follow the word "by".
    axis
        Label of a column or an axis of groups.
    note
        A sentence for readers of a page.
    labels
        Value of the column → label of the group; other values are their own labels.
    """

    __test__ = False  # not a test case despite its name

    name: str
    column: str
    title: str
    axis: str
    note: str
    labels: Mapping[int, str]

    def label(self, value: int) -> str:
        """Return the label of a group."""
        return self.labels.get(value, str(value))


class CallbackSection(SubParameters, read_for=Purpose.NOTHING):
    """A section that, if enabled, adds the callback of the same name.

    Its fields have no purpose: the callback declares which stage keys include it.

    - ``enabled``: add the callback.
    """

    enabled: bool = False
