"""Find an experiment's trainer by name, by file, or among installed plug-ins, and build it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError
from ratchet.parameters.compatibility.torchrl_names import refuse_not_run
from ratchet.parameters.reading.discovery import agent_model
from trainers.base import Trainer
from trainers.named import TRAINERS as TRAINERS
from trainers.named import NamedTrainer
from trainers.named import register_trainer as register_trainer

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.base import AnyScenarioInstance


def trainer_class(
    hyper_params: HyperParameters, base_dir: str | Path | None = None
) -> type[Trainer]:
    """Return the trainer of an experiment.

    ``hyper_params.trainer`` is a name, ``path/to/file.py:ClassName``, or a reference with
    ``module_path`` and ``class_name``; relative paths start from ``base_dir``, the experiment
    file's folder, or from the current one.
    """
    refuse_not_run(hyper_params.trainer_name)
    named = TRAINERS.find(hyper_params.trainer, base_dir)
    _check_complete(named)
    trainer_cls = _loop_of(named)
    _check_agents(trainer_cls, hyper_params)
    trainer_cls.check_parameters(hyper_params, None if base_dir is None else Path(base_dir))
    return trainer_cls


def build_trainer(
    hyper_params: HyperParameters,
    scenario_instance: AnyScenarioInstance,
    settings: ExperimentSettings,
    base_dir: str | Path | None = None,
) -> Trainer:
    """Build the trainer of an experiment (errors as in :func:`trainer_class`)."""
    return trainer_class(hyper_params, base_dir)(hyper_params, scenario_instance, settings)


def _loop_of(named: type[NamedTrainer]) -> type[Trainer]:
    """Return the class whose training is run: the loop around the trainer of a language model."""
    if issubclass(named, Trainer):
        return named
    from trainers.language.base import BaseTrainer  # torch takes seconds
    from trainers.language.trainer import loop_around

    assert issubclass(named, BaseTrainer)
    return loop_around(named)


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
    traits = trainer.traits
    fits = None in (is_text, traits.plays_text) or is_text == traits.plays_text
    if fits and learns_tokens == traits.learns_tokens:
        return
    kinds = [
        _kind(is_text=bool(each), learns_tokens=tokens)
        for each, tokens in ((is_text, learns_tokens), (traits.plays_text, traits.learns_tokens))
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
