"""Find trainers by name, by file, or among installed plug-ins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ratchet.errors import ParameterError
from ratchet.parameters.compatibility.torchrl_names import refuse_not_run
from ratchet.parameters.reading.discovery import agent_model
from ratchet.registry import Registry
from trainers.base import NamedTrainer, Trainer

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.base import AnyScenarioInstance

_TrainerClass = TypeVar("_TrainerClass", bound=type[NamedTrainer])

TRAINERS: Registry[NamedTrainer] = Registry("trainer", "trainers.base:NamedTrainer", "trainers")


def register_trainer(name: str) -> Callable[[_TrainerClass], _TrainerClass]:
    """Register a trainer under a name, which experiments use as ``trainer``.

    Raises ParameterError if another class has the name.
    """
    return TRAINERS.register(name)


def trainer_names() -> list[str]:
    """Return the names of all built-in, registered and installed trainers; import none of them."""
    return TRAINERS.names()


def registered_names(trainer: type[Trainer]) -> tuple[str, ...]:
    """Return the names of a trainer class and of its base classes."""
    return TRAINERS.names_of(trainer)


def trainer_class(
    hyper_params: HyperParameters, base_dir: str | Path | None = None
) -> type[Trainer]:
    """Return the trainer of an experiment.

    ``hyper_params.trainer`` is a name, ``path/to/file.py:ClassName``, or a reference with
    ``module_path`` and ``class_name``; relative paths start from ``base_dir``, the experiment
    file's folder, or from the current one.

    Raises
    ------
    UnknownNameError
        If no trainer has the name.
    ParameterError
        If the match is no trainer, can't train the scenario's kind of agents, or refuses the
        parameters.
    """
    refuse_not_run(hyper_params.trainer_name)
    named = TRAINERS.find(hyper_params.trainer, base_dir)
    _check_complete(named)
    found = named.trainer_class()
    _check_agents(found, hyper_params)
    found.check_parameters(hyper_params, None if base_dir is None else Path(base_dir))
    return found


def build_trainer(
    hyper_params: HyperParameters,
    scenario_instance: AnyScenarioInstance,
    settings: ExperimentSettings,
    base_dir: str | Path | None = None,
) -> Trainer:
    """Build the trainer of an experiment (errors as in :func:`trainer_class`)."""
    return trainer_class(hyper_params, base_dir)(hyper_params, scenario_instance, settings)


def _check_complete(named: type[NamedTrainer]) -> None:
    """Refuse a class with abstract methods."""
    missing = sorted(getattr(named, "__abstractmethods__", ()))
    if missing:
        base = named.__mro__[1].__name__
        raise ParameterError(
            f"trainer: {named.__name__} does not implement {missing}, which {base} requires."
            " Implement them, or derive it from a class that does."
        )


def _check_agents(trainer: type[Trainer], hyper_params: HyperParameters) -> None:
    """Refuse a trainer whose kind of agents differs from the scenario's."""
    model = agent_model(hyper_params.scenario)
    is_text = getattr(model, "is_text", None)
    learns_tokens = bool(getattr(model, "learns_tokens", False))
    fits = None in (is_text, trainer.plays_text) or is_text == trainer.plays_text
    if fits and learns_tokens == trainer.learns_tokens:
        return
    kinds = [
        _kind(is_text=bool(each), learns_tokens=tokens)
        for each, tokens in ((is_text, learns_tokens), (trainer.plays_text, trainer.learns_tokens))
    ]
    raise ParameterError(
        f"trainer: got {hyper_params.trainer_name!r} for the scenario {hyper_params.scenario!r}:"
        f" the agents of the scenario are {kinds[0]}, but the trainer trains {kinds[1]}. Choose"
        f" another trainer, e.g. {_FITTING[kinds[0]]}, or another scenario."
    )


def _kind(*, is_text: bool, learns_tokens: bool) -> str:
    if learns_tokens:
        return "language models trained on their tokens"
    return "chat models behind an API" if is_text else "local networks"


_FITTING = {
    "language models trained on their tokens": "grpo",
    "chat models behind an API": "pure_text_ei or pure_text_malt",
    "local networks": "vanilla_ppo or solo_agent",
}
"""Kind of agents → suitable trainers."""
