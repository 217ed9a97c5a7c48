"""The one place that says whether trainer, scenario, protocol and options go together.

Asked before anything is built: by runs, plans and sweeps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError
from ratchet.protocols.registry import build_protocol_handler, check_protocol_parameters
from trainers.registry import trainer_class

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from trainers.base import Trainer


def check_combination(hyper_params: HyperParameters, base_dir: str | Path | None = None) -> None:
    """Refuse parameters that name things which exist but don't go together.

    Parameters
    ----------
    hyper_params
        Valid each by itself.
    base_dir
        The folder that paths to plug-ins start from.

    Raises
    ------
    ParameterError
        Naming both sides, and what would fit.
    UnknownNameError
        If a protocol or trainer is not there.
    ProtocolSpecificationError
        If a protocol of the user's contradicts itself.
    """
    folder = None if base_dir is None else Path(base_dir)
    check_protocol_parameters(hyper_params, base_dir=folder)
    trainer = trainer_class(hyper_params, folder)
    _check_loaded_agents(hyper_params, trainer)
    if hyper_params.message_regression.enabled:
        _check_message_regression(hyper_params, trainer, folder)


def _check_loaded_agents(hyper_params: HyperParameters, trainer: type[Trainer]) -> None:
    for name in hyper_params.agents:
        if hyper_params.agents[name].load_checkpoint_and_parameters and not trainer.loads_agents():
            raise ParameterError(
                f"agents.{name}.load_checkpoint_and_parameters: got true, but the trainer"
                f" {hyper_params.trainer_name!r} loads no agents. Set it to false, or choose a"
                " trainer such as vanilla_ppo."
            )


def _check_message_regression(
    hyper_params: HyperParameters, trainer: type[Trainer], folder: Path | None
) -> None:
    if not trainer.regresses_messages():
        raise ParameterError(
            "message_regression.enabled: got true, but the trainer"
            f" {hyper_params.trainer_name!r} plays no rollouts of networks that exchange messages."
            " Set it to false, or choose a trainer such as vanilla_ppo."
        )
    handler = build_protocol_handler(hyper_params, base_dir=folder)
    hyper_params.message_regression.choose_agents(handler.agent_names)
