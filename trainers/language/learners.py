"""The trainers of an experiment's models, by model: their start, states and weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ratchet.seeding import derive_seed, seeded_globals
from trainers.base import deterministic_kernels, torch_threads
from trainers.callbacks.base import CallbackState
from trainers.custom_state import is_custom, is_custom_method, put_attributes, take_attributes
from trainers.language.base import BaseTrainer, InitialModel, config_of
from trainers.language.models import (
    MODELS_FOLDER,
    build_model,
    load_built_model,
    load_earlier_model,
)
from trainers.language.state import LanguageState, without_optimizer
from trainers.results import FolderOf
from trainers.state_tree import flatten_tree, unflatten_tree

if TYPE_CHECKING:
    from ratchet.language_models.local.model import LanguageModel
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.language_task.instance import LanguageTaskInstance
    from ratchet.tracking.trainer_files import StateFinder

_ATTRIBUTES = "assigned_attributes"
"""The entry of one of several learners' states with the attributes of its class."""


def build_learners(
    learner_class: type[BaseTrainer],
    hyper_params: HyperParameters,
    settings: ExperimentSettings,
    instance: LanguageTaskInstance,
    model_names: Mapping[str, str],
    *,
    initial: Path | None,
    find: StateFinder,
    only_plays: bool,
) -> dict[str, BaseTrainer]:
    """Create the models' trainers, with new models, or those in the folder of an initial state.

    ``model_names``: agent → the name of its model. A model has the parameters of its first agent.
    ``find`` finds the states of earlier runs, from which new models may start.
    """
    first = {model: agent for agent, model in reversed([*model_names.items()])}
    learners: dict[str, BaseTrainer] = {}
    models: WeakSet[LanguageModel] = WeakSet()
    for model in dict.fromkeys(model_names.values()):
        name = first[model]

        def build(name: str = name, model: str = model) -> LanguageModel:
            if initial is not None:
                folder = initial / MODELS_FOLDER / model
                built = load_built_model(instance, name, settings, folder)
            elif instance.agents[name].parameters.load_checkpoint_and_parameters:
                built = load_earlier_model(instance, name, settings, find)
            else:
                built = build_model(instance, name, settings)
            built.num_on_device = len(first)
            built.share_frozen_weights(models)
            models.add(built)
            return built

        agent = instance.agents[name].parameters
        which = "" if len(first) == 1 else model
        seed = derive_seed(hyper_params.seed, "initial_state", agent=which)
        trainer_seed = derive_seed(hyper_params.seed, "initial_state", 0, "trainer", which)
        config = config_of(hyper_params, learner_class.section, agent, settings.base_dir)
        with seeded_globals(trainer_seed):
            learners[model] = learner = learner_class(config)
        kernels = deterministic_kernels(settings, strict=True)
        with torch_threads(settings.num_threads), kernels, seeded_globals(seed):
            intent = f"{instance.train_dataset.hash}:{hyper_params.seed}:{name}"
            learner.begin(InitialModel(build, agent, settings, intent, only_plays))
    return learners


def read_state(
    learner_class: type[BaseTrainer], folder: Path, *, sampled: bool = False
) -> LanguageState:
    """Read a stored state, or only the part that sampling reads; tensors are mapped.

    Ratchet's trainers copy them into their models and optimizers. Custom ones may keep tensors,
    and read any part: they get copies of all.
    """
    if is_custom(learner_class):
        return LanguageState.load(folder)
    state = LanguageState.load(folder, copy=False)
    return state.without_optimizers() if sampled else state


def take_learner(
    learners: Mapping[str, BaseTrainer], model: str, *, sampled: bool = False
) -> dict[str, Any]:
    """Copy the state of a model's trainer; of several, with the attributes of its class.

    ``sampled``: only the part that sampling reads.
    """
    learner = learners[model]
    state = without_optimizer(learner.take_state()) if sampled else learner.take_state()
    if len(learners) > 1:
        stores_itself = is_custom_method(type(learner), "take_state")
        state[_ATTRIBUTES] = take_attributes(learner, strict=not stores_itself)
    return dict(unflatten_tree(*flatten_tree(state)))


def put_learner(learners: Mapping[str, BaseTrainer], model: str, state: Mapping[str, Any]) -> None:
    """Restore the result of :func:`take_learner`."""
    learner, content = learners[model], dict(state)
    attributes = content.pop(_ATTRIBUTES, {})
    learner.put_state(content)
    if len(learners) > 1:
        put_attributes(learner, attributes)


@contextmanager
def replaced_learners(
    learners: Mapping[str, BaseTrainer], states: Mapping[str, str], folder_of: FolderOf | None
) -> Iterator[None]:
    """Let models' trainers sample with the states of other stages for the duration of the block.

    ``states``: model → key of the stage. Optimizers stay, except those of custom trainers, and
    those of ranks, whose float32 weights follow the weights.
    """
    current: dict[str, dict[str, Any]] = {}
    try:
        for model, key in states.items():
            assert folder_of is not None  # set with the state that names the stages
            kind, service = type(learners[model]), learners[model].language.train_service
            sampled = not is_custom(kind) and service.world_size == 1
            current[model] = take_learner(learners, model, sampled=sampled)
            earlier = read_state(kind, folder_of(key), sampled=sampled)
            put_learner(learners, model, earlier.learners[model])
        yield
    finally:
        for model, state in current.items():
            put_learner(learners, model, state)


def take_weights(learners: Mapping[str, BaseTrainer]) -> CallbackState:
    """Copy the trained weights, or their names at a service; of several, by model."""
    if len(learners) == 1:
        (learner,) = learners.values()
        return learner.take_weights()
    weights = {model: learner.take_weights() for model, learner in learners.items()}
    return CallbackState(
        {f"{model}:{n}": v for model, its in weights.items() for n, v in its.values.items()},
        {f"{model}:{n}": v for model, its in weights.items() for n, v in its.tensors.items()},
    )


def put_weights(learners: Mapping[str, BaseTrainer], weights: CallbackState) -> None:
    """Restore the result of :func:`take_weights`."""
    for model, learner in learners.items():
        prefix = "" if len(learners) == 1 else f"{model}:"
        values, tensors = _of_model(weights.values, prefix), _of_model(weights.tensors, prefix)
        learner.put_weights(CallbackState(values, tensors))


def _of_model(entries: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries of one model, without its prefix."""
    return {n.removeprefix(prefix): v for n, v in entries.items() if n.startswith(prefix)}
