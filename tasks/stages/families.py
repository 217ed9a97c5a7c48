"""Which family an arm belongs to, by its trainer: networks, chat models, or language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from tasks.language.keys import LanguageArmKeys
from tasks.language.session import LanguageArmSession
from tasks.tensordict.keys import ArmKeys
from tasks.tensordict.session import ArmSession
from tasks.text.keys import TextArmKeys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.store import StageStore
    from tasks.stages.decorator import Stage
    from trainers.base import Trainer

AnyKeys: TypeAlias = ArmKeys | TextArmKeys


def make_keys(
    arm: str,
    hyper_params: HyperParameters,
    *,
    base_dir: str | None = None,
    checkpoints: Mapping[str, str] | None = None,
) -> AnyKeys:
    """Make the keys of an arm, of its trainer's family; see :class:`tasks.stages.keys.BaseKeys`.

    Raises UnknownNameError if there is no such trainer.
    """
    from trainers.registry import trainer_class

    found = trainer_class(hyper_params, base_dir)
    family: type[AnyKeys] = TextArmKeys if plays_in_text_stages(found) else ArmKeys
    if found.learns_tokens:
        family = LanguageArmKeys
    return family(arm, hyper_params, base_dir=base_dir, checkpoints=checkpoints)


def stage_functions(keys: AnyKeys) -> Mapping[str, Stage[Any]]:
    """Return what does each stage of an arm, by the stage's name. Imports Prefect."""
    if isinstance(keys, TextArmKeys):
        from tasks.text.stages import STAGES as TEXT_STAGES

        return TEXT_STAGES
    if isinstance(keys, LanguageArmKeys):
        from tasks.language import stages

        return stages.STAGES_AHEAD if keys.plays_ahead else stages.STAGES
    from tasks.tensordict.stages import STAGES

    return STAGES


def arm_session(keys: ArmKeys, settings: ExperimentSettings, store: StageStore) -> ArmSession:
    """Return what the stages of an arm share whose models are trained by Ratchet itself."""
    if isinstance(keys, LanguageArmKeys):
        return LanguageArmSession(keys, settings, store)
    return ArmSession(keys, settings, store)


def plays_in_text_stages(trainer: type[Trainer]) -> bool:
    """Return whether a trainer's iterations are cut into the stages of chat models."""
    from trainers.text.staged import StagedTextTrainer

    return issubclass(trainer, StagedTextTrainer) and trainer.supports_stages()
