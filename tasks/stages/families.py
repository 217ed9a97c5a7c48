"""Which family an arm belongs to, by its trainer: networks on tensors, or chat models."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tasks.tensordict.keys import ArmKeys
from tasks.text.keys import TextArmKeys

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from tasks.stages.pins import Pins
    from trainers.base import Trainer

AnyKeys: TypeAlias = ArmKeys | TextArmKeys


def make_keys(
    arm: str,
    hyper_params: HyperParameters,
    *,
    base_dir: str | None = None,
    pins: Pins | None = None,
) -> AnyKeys:
    """Make the keys of an arm, of its trainer's family.

    Parameters
    ----------
    arm
        Its name.
    hyper_params
        What it is made of.
    base_dir
        The folder that paths to plug-ins start from.
    pins
        Stages of an earlier run to keep.

    Raises
    ------
    UnknownNameError
        If there is no such trainer.
    """
    from trainers.registry import trainer_class

    found = trainer_class(hyper_params, base_dir)
    family = TextArmKeys if plays_in_text_stages(found) else ArmKeys
    return family(arm, hyper_params, base_dir=base_dir, pins=pins)


def plays_in_text_stages(trainer: type[Trainer]) -> bool:
    """Say whether a trainer's iterations are cut into the stages of chat models."""
    from trainers.text.staged import StagedTextTrainer

    return issubclass(trainer, StagedTextTrainer) and trainer.supports_stages()
