"""Find trainers by name, by file, or among installed plug-ins.

A built-in trainer is found by its decorator in the source of the family packages, so that
listing names imports nothing and using one imports no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ratchet.errors import ParameterError, UnknownNameError, nearest
from ratchet.parameters.base import AGENT_MODELS
from trainers.base import Trainer

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.parameters.trainers import TrainerReference
    from ratchet.scenarios.instance import AnyScenarioInstance

ENTRY_POINT_GROUP = "ratchet.trainers"
_REGISTERED: dict[str, type[Trainer]] = {}
_DECORATOR = re.compile(r'^@register_trainer\(\s*"([^"]+)"\s*\)', re.MULTILINE)
_TrainerClass = TypeVar("_TrainerClass", bound=type[Trainer])


def register_trainer(name: str) -> Callable[[_TrainerClass], _TrainerClass]:
    """Make a trainer known by a name.

    Parameters
    ----------
    name
        What experiments write as ``trainer``.

    Raises
    ------
    ParameterError
        If the name is taken by a class of another name or module.
    """

    def decorate(trainer: _TrainerClass) -> _TrainerClass:
        known = _REGISTERED.get(name)
        if known is not None and _identity(known) != _identity(trainer):
            raise ParameterError(
                f"trainer {name!r} is taken by {_identity(known)}; got {_identity(trainer)}."
                " Choose another name."
            )
        _REGISTERED[name] = trainer
        return trainer

    return decorate


def trainer_names() -> list[str]:
    """List every known trainer: built-in, registered and installed. Imports none of them."""
    return sorted({*_built_in_modules(), *_REGISTERED, *_entry_points()})


def registered_names(trainer: type[Trainer]) -> tuple[str, ...]:
    """List the names of a trainer class and of the classes it is derived from."""
    return tuple(name for name, known in _REGISTERED.items() if issubclass(trainer, known))


def trainer_class(
    hyper_params: HyperParameters, base_dir: str | Path | None = None
) -> type[Trainer]:
    """Find the trainer of an experiment.

    Parameters
    ----------
    hyper_params
        ``trainer`` is a name, ``path/to/file.py:ClassName``, or a reference with
        ``module_path`` and ``class_name``.
    base_dir
        The folder that a relative path starts from: the experiment file's. The current
        folder by default.

    Raises
    ------
    UnknownNameError
        If no trainer has the name.
    ParameterError
        If what was found is no trainer, can't train the scenario's kind of agents, or refuses
        the parameters.
    """
    found = _find(hyper_params.trainer, base_dir)
    _check_agents(found, hyper_params)
    found.check_parameters(hyper_params, None if base_dir is None else Path(base_dir))
    return found


def _find(reference: str | TrainerReference, base_dir: str | Path | None) -> type[Trainer]:
    if not isinstance(reference, str):
        return _load_from_file(f"{reference.module_path}:{reference.class_name}", base_dir)
    if reference.partition(":")[0].endswith(".py"):
        return _load_from_file(reference, base_dir)
    if reference not in _REGISTERED:
        _import_by_name(reference)
    if reference not in _REGISTERED:
        raise UnknownNameError(
            f"trainer: unknown {reference!r}.{nearest(reference, trainer_names())} A trainer in a"
            " file of its own is named by `trainer: {module_path: file.py, class_name: Name}`."
        )
    return _REGISTERED[reference]


def build_trainer(
    hyper_params: HyperParameters,
    scenario_instance: AnyScenarioInstance,
    settings: ExperimentSettings,
    base_dir: str | Path | None = None,
) -> Trainer:
    """Make the trainer of an experiment (errors as in :func:`trainer_class`)."""
    return trainer_class(hyper_params, base_dir)(hyper_params, scenario_instance, settings)


def _check_agents(trainer: type[Trainer], hyper_params: HyperParameters) -> None:
    """Refuse a trainer of chat models for agents that are networks, and the other way round."""
    is_text = getattr(AGENT_MODELS[hyper_params.scenario], "is_text", None)
    if None in (is_text, trainer.plays_text) or is_text == trainer.plays_text:
        return
    kinds = {True: "chat models behind an API", False: "local networks"}
    fitting = "pure_text_ei or pure_text_malt" if is_text else "vanilla_ppo or solo_agent"
    raise ParameterError(
        f"trainer: got {hyper_params.trainer_name!r} for the scenario {hyper_params.scenario!r}:"
        f" the agents of the scenario are {kinds[bool(is_text)]}, but the trainer trains"
        f" {kinds[bool(trainer.plays_text)]}. Take another trainer, e.g. {fitting}, or another"
        " scenario."
    )


def _identity(trainer: type[Trainer]) -> str:
    return f"{trainer.__module__}.{trainer.__qualname__}"


@cache
def _built_in_modules() -> dict[str, str]:
    """Map each built-in trainer's name to its module."""
    root = Path(__file__).parent
    found = {}
    for path in sorted(root.glob("*/*.py")):
        for name in _DECORATOR.findall(path.read_text(encoding="utf-8")):
            found[name] = f"{root.name}.{path.parent.name}.{path.stem}"
    return found


@cache
def _entry_points() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _import_by_name(name: str) -> None:
    """Import the module in which the trainer registers itself, if there is one."""
    if name in _built_in_modules():
        import_module(_built_in_modules()[name])
    elif name in _entry_points():
        loaded = _entry_points()[name].load()
        if name not in _REGISTERED:
            _REGISTERED[name] = _checked(loaded, f"entry point {name!r}")


def _load_from_file(spec: str, base_dir: str | Path | None) -> type[Trainer]:
    from ratchet.plugins import load_class

    return _checked(load_class(spec, Path(base_dir) if base_dir is not None else Path.cwd()), spec)


def _checked(found: object, origin: str) -> type[Trainer]:
    if not (isinstance(found, type) and issubclass(found, Trainer)):
        raise ParameterError(f"trainer: {origin} is {found!r}, expected a subclass of Trainer.")
    return found
