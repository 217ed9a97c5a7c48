"""Families of arms by their trainer: networks, chat models, or language models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tasks.language.keys import LanguageArmKeys
from tasks.language.session import LanguageArmSession
from tasks.tensordict.keys import ArmKeys
from tasks.tensordict.session import ArmSession
from tasks.text.keys import TextArmKeys
from tasks.text.session import TextArmSession

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.closure import KnownCode
    from ratchet.store.store import StageStore
    from tasks.stages.decorator import Stage
    from tasks.stages.keys import BaseKeys
    from tasks.stages.session import RunBilling

AnyKeys: TypeAlias = ArmKeys | LanguageArmKeys | TextArmKeys
AnySession: TypeAlias = ArmSession | TextArmSession


def make_keys(
    arm: str,
    hyper_params: HyperParameters,
    *,
    base_dir: str | None = None,
    checkpoints: Mapping[str, str] | None = None,
    code: KnownCode | None = None,
) -> AnyKeys:
    """Create the keys of an arm, of its trainer's family; see :class:`tasks.stages.keys.BaseKeys`.

    Raises UnknownNameError if there is no such trainer.
    """
    from trainers.registry import trainer_class
    from trainers.text.components import has_text_stages

    trainer = trainer_class(hyper_params, base_dir)
    family: type[AnyKeys] = TextArmKeys if has_text_stages(trainer) else ArmKeys
    if trainer.traits.learns_tokens:
        family = LanguageArmKeys
    return family(arm, hyper_params, base_dir=base_dir, checkpoints=checkpoints, code=code)


def stage_functions(keys: BaseKeys) -> Mapping[str, Stage[Any]]:
    """Return the function of each stage of an arm, by the stage's name. Imports the trainers."""
    modules = [import_module(name) for name in keys.task_modules]
    stages: dict[str, Stage[Any]] = {
        name: next(getattr(module, name) for module in modules if hasattr(module, name))
        for name in (kind.name for kind in keys.family_kinds)
    }
    if isinstance(keys, LanguageArmKeys) and keys.plays_ahead:
        from tasks.language.stages import prefetch_rollouts

        stages["rollouts"] = prefetch_rollouts
    declared = {stage.kind.name: stage for stage in keys.further_stages}
    return {**stages, **cast("dict[str, Stage[Any]]", declared)}


def open_session(
    keys: AnyKeys,
    settings: ExperimentSettings,
    store: StageStore,
    billing: RunBilling | None = None,
) -> AnySession:
    """Return the session of an arm; ``billing`` (default: without budget) is for chat models."""
    if isinstance(keys, TextArmKeys):
        return TextArmSession(keys, settings, store, billing)
    if isinstance(keys, LanguageArmKeys):
        return LanguageArmSession(keys, settings, store)
    return ArmSession(keys, settings, store)
