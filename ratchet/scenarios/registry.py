"""Registry of scenarios by name, and construction of their instances.

A custom scenario is given as ``path/to/file.py:Class``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet.errors import DataError
from ratchet.language_models.auxiliary_calls import ModelCalls
from ratchet.language_models.ledger import Ledger
from ratchet.language_models.pricing import Budget
from ratchet.language_models.usage import UsageMeter
from ratchet.protocols.registry import build_protocol_handler
from ratchet.registry import Registry
from ratchet.scenarios.validation_split import split_datasets

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.base import AnyScenarioInstance, Scenario

_ScenarioClass = TypeVar("_ScenarioClass", bound="type[Scenario]")

SCENARIOS: Registry[Scenario] = Registry(
    "scenario", "ratchet.scenarios.base:Scenario", "ratchet.scenarios"
)


def register_scenario(name: str) -> Callable[[_ScenarioClass], _ScenarioClass]:
    """Register a scenario under a name, for experiment files.

    Raises ParameterError if another class has the name.
    """
    return SCENARIOS.register(name)


def build_scenario(name: str, base_dir: Path | None = None) -> Scenario:
    """Create a scenario by a registered name, or by ``path/to/file.py:ClassName``.

    Paths of the user's files start from ``base_dir``, the working folder if not given.
    """
    scenario = SCENARIOS.find(name, base_dir)()
    scenario.base_dir = base_dir
    return scenario


def build_scenario_instance(
    hyper_params: HyperParameters,
    settings: ExperimentSettings,
    *,
    datasets: Mapping[str, Any] | None = None,
    trainer_type: str = "rl",
    base_dir: Path | None = None,
) -> AnyScenarioInstance:
    """Build protocol, datasets (unless given), environments and agents.

    Replies of a model that writes part of the data are stored only by the stage that calls it.

    Only settings of where and how agents run are read, e.g. ``device``. The trainer type determines
    the agents' parts: ``"rl"``, ``"solo_agent"``, ``"pure_text"`` or a custom one. Paths of custom
    scenarios, networks and protocols start from ``base_dir``.

    Raises
    ------
    DataError
        If ``train`` or ``test`` is missing.
    """
    if datasets is None:
        usage = UsageMeter("build_scenario", Ledger(Budget(settings.budget)))
        with ModelCalls(settings, usage) as calls:
            scenario = build_scenario(hyper_params.scenario, base_dir)
            datasets = split_datasets(scenario, hyper_params, calls)
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
    available_datasets = dict(datasets)
    missing = {"train", "test"} - available_datasets.keys()
    if missing:
        raise DataError(
            f"build_scenario_instance: got datasets {sorted(available_datasets)}, expected train"
            " and test."
        )
    return scenario.build_instance(
        hyper_params, settings, handler, available_datasets, trainer_type
    )
