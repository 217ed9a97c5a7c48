"""The one place that says whether trainer, scenario, protocol and options go together.

Asked before anything is built: by runs, plans and sweeps.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.parameters.reserved import refuse_reserved_parameters
from ratchet.protocols.registry import check_protocol_parameters
from trainers.registry import trainer_class

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters


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
    refuse_reserved_parameters(hyper_params)
    check_protocol_parameters(hyper_params, base_dir=folder)
    trainer_class(hyper_params, folder)
