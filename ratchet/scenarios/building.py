"""Build all components of an experiment from its parameters and settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import DataError
from ratchet.language_models.asking import ModelCalls
from ratchet.language_models.ledger import Ledger
from ratchet.language_models.pricing import Budget
from ratchet.language_models.usage import UsageMeter
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.registry import build_scenario

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.instance import AnyScenarioInstance


def build_scenario_instance(
    hyper_params: HyperParameters,
    settings: ExperimentSettings,
    *,
    datasets: Mapping[str, Any] | None = None,
    trainer_type: str = "rl",
    base_dir: Path | None = None,
) -> AnyScenarioInstance:
    """Build the protocol, the datasets (unless given), environments and agents.

    The responses of a model that writes part of the data are only stored by the stage that builds
    the data.

    Of the settings, only those about where and how agents run are read, e.g. ``device``. The
    trainer type decides which parts agents have: ``"rl"``, ``"solo_agent"``, ``"pure_text"`` or a
    custom trainer's. Paths of custom scenarios, networks and protocols start from ``base_dir``.

    Raises
    ------
    DataError
        If ``train`` or ``test`` is missing.
    """
    if datasets is None:
        usage = UsageMeter("build_scenario", Ledger(Budget(settings.budget)))
        with ModelCalls(settings, usage) as calls:
            scenario = build_scenario(hyper_params.scenario, base_dir)
            datasets = scenario.make_datasets(hyper_params, calls)
    return assemble_scenario_instance(hyper_params, settings, datasets, trainer_type, base_dir)


def assemble_scenario_instance(
    hyper_params: HyperParameters,
    settings: ExperimentSettings,
    datasets: Mapping[str, Any],
    trainer_type: str,
    base_dir: Path | None,
) -> AnyScenarioInstance:
    """Build the components of :func:`build_scenario_instance` around existing datasets.

    A separate function, so that the code that builds data is in the keys of that stage only.
    """
    scenario = build_scenario(hyper_params.scenario, base_dir)
    handler = build_protocol_handler(hyper_params, base_dir=base_dir)
    made = dict(datasets)
    missing = {"train", "test"} - made.keys()
    if missing:
        raise DataError(
            f"build_scenario_instance: got datasets {sorted(made)}, expected train and test."
        )
    return scenario.build_instance(hyper_params, settings, handler, made, trainer_type)
