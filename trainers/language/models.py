"""The initial model of a language trainer: created and warmed up here, or loaded."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import StateError
from ratchet.language_models.local.loading import load_language_model
from ratchet.language_models.local.small_models import SmallModelShape, make_small_model
from ratchet.language_models.local.warm_up import warm_up
from ratchet.models.lora import Lora
from ratchet.parameters.compatibility.converters import upgraded
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.scenarios.language_task.parameters import SMALL
from ratchet.seeding import derive_seed
from trainers.language.state import LanguageState
from trainers.progress import describe, show

if TYPE_CHECKING:
    from ratchet.language_models.local.model import LanguageModel
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.language_task.instance import LanguageTaskInstance
    from ratchet.scenarios.language_task.parameters import LanguageAgentParameters
    from ratchet.tracking.trainer_files import StateFinder

MODELS_FOLDER = "models"


def build_model(
    instance: LanguageTaskInstance, agent: str, settings: ExperimentSettings
) -> LanguageModel:
    """Create or load an agent's model; then warm it up on demonstrations if configured.

    Depends only on parameters and seed, so that building it again yields the same model.
    """
    section, seed = instance.agents[agent].parameters, instance.hyper_params.seed
    if section.model != SMALL:
        drawn = derive_seed(seed, "initial_state", 0, "adapter", agent)
        model = _load(section.model, section, settings, _lora(section), drawn)
    else:
        with tempfile.TemporaryDirectory(prefix="ratchet-model-") as folder:
            model_folder = Path(folder) / agent
            make_small_model(
                model_folder,
                alphabet=instance.characters,
                shape=SmallModelShape(**section.small_model.to_dict()),
                seed=derive_seed(seed, "initial_state", 0, "weights", agent),
            )
            model = _load(str(model_folder), section, settings)
    if section.warm_up.num_steps:
        _warm_up(model, instance, agent, section)
    return model


def load_built_model(
    instance: LanguageTaskInstance, agent: str, settings: ExperimentSettings, folder: Path
) -> LanguageModel:
    """Load the stored result of :func:`build_model`."""
    section = instance.agents[agent].parameters
    base = None if section.lora.rank is None else section.model  # may have been moved since
    return _load(str(folder.resolve()), section, settings, base=base)


def load_earlier_model(
    instance: LanguageTaskInstance, agent: str, settings: ExperimentSettings, find: StateFinder
) -> LanguageModel:
    """Load an agent's model from the state of an earlier run: its files, then trained weights."""
    section = instance.agents[agent].parameters
    saved = find(str(section.checkpoint_run_id), section.checkpoint_version)
    state = LanguageState.load(saved.open(), copy=False)
    earlier = upgraded(saved.hyper_params, f"run {saved.run_id}")
    source = HyperParameters.from_dict(earlier).agents[agent]
    group = getattr(source, "shared_model_group", None) or agent
    weights = state.learners[group].get("model")
    if saved.folder_of is None or not state.initial or not isinstance(weights, Mapping):
        raise StateError(
            f"agent {agent!r} of run {saved.run_id} after {saved.iteration} iterations: the state"
            " contains no weights with their model, expected those of a model trained here, in"
            " stages (`ratchet run`)."
        )
    folder = saved.folder_of(state.initial) / MODELS_FOLDER / group
    model = load_built_model(instance, agent, settings, folder)
    model.load_state_dict(weights)
    return model


def _load(
    name_or_folder: str,
    section: LanguageAgentParameters,
    settings: ExperimentSettings,
    lora: Lora | None = None,
    seed: int = 0,
    base: str | None = None,
) -> LanguageModel:
    model = load_language_model(
        name_or_folder,
        base_dir=Path(settings.base_dir or "."),
        lora=lora,
        device=settings.device,
        dtype=section.precision,
        seed=seed,
        base=base,
    )
    recomputes = settings.recompute_activations
    if recomputes is None:
        recomputes = model.should_recompute_activations
    if recomputes:
        model.recompute_activations()
    return model


def _lora(section: LanguageAgentParameters) -> Lora | None:
    lora_section = section.lora
    if lora_section.rank is None:
        return None
    return Lora(lora_section.rank, lora_section.alpha, target_modules=lora_section.target_modules)


def _warm_up(
    model: LanguageModel,
    instance: LanguageTaskInstance,
    agent: str,
    section: LanguageAgentParameters,
) -> None:
    options, step = section.warm_up, count(1)

    def report(loss: float) -> None:
        describe(f"Warm-up of {agent}, step {next(step)} of at most {options.num_steps}")
        show({"loss": loss})

    warm_up(
        model,
        instance.demonstrations(model.tokenizer),
        steps=options.num_steps,
        until=options.until_loss,
        learning_rate=options.lr,
        batch_size=options.batch_size,
        seed=derive_seed(instance.hyper_params.seed, "initial_state", 0, "warm_up", agent),
        on_step=report,
    )
