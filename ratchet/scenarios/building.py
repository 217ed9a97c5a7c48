"""Build all components of an experiment from its parameters and settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import DataError
from ratchet.parameters.reserved import refuse_reserved_parameters, refuse_reserved_settings
from ratchet.protocols.registry import build_protocol_handler
from ratchet.scenarios.instance import ScenarioInstance
from ratchet.scenarios.registry import build_scenario

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.dataset import TensorDictDataset


def build_scenario_instance(
    hyper_params: HyperParameters,
    settings: ExperimentSettings,
    *,
    datasets: Mapping[str, TensorDictDataset] | None = None,
    trainer_type: str = "rl",
    base_dir: Path | None = None,
) -> ScenarioInstance:
    """Build protocol, datasets, environments and agents.

    Parameters
    ----------
    hyper_params
        What decides the result.
    settings
        Of these only ``device`` is read.
    datasets
        ``train``, ``test`` and extra test sets, where they were made before; else they are made.
    trainer_type
        Decides which heads agents have: ``"rl"``, ``"solo_agent"`` or a trainer's own.
    base_dir
        Where the path of a user's own protocol starts from.

    Raises
    ------
    DataError
        If ``train`` or ``test`` is missing.
    """
    scenario = build_scenario(hyper_params.scenario)
    refuse_reserved_parameters(hyper_params)
    refuse_reserved_settings(settings)
    handler = build_protocol_handler(hyper_params, base_dir=base_dir)
    made = dict(scenario.build_datasets(hyper_params) if datasets is None else datasets)
    missing = {"train", "test"} - made.keys()
    if missing:
        raise DataError(
            f"build_scenario_instance: got datasets {sorted(made)}, expected train and test."
        )
    device = settings.device
    environments = {
        name: scenario.build_environment(
            hyper_params, dataset, handler, train=name == "train", device=device
        )
        for name, dataset in made.items()
    }
    agents = scenario.build_agents(hyper_params, handler, trainer_type, device)
    combined = scenario.combine_agents(hyper_params, handler, agents)
    combined.bind(environments["train"])
    extra = sorted(made.keys() - {"train", "test"})
    return ScenarioInstance(
        hyper_params=hyper_params,
        settings=settings,
        protocol_handler=handler,
        train_dataset=made["train"],
        test_dataset=made["test"],
        extra_test_datasets={name: made[name] for name in extra},
        train_environment=environments["train"],
        test_environment=environments["test"],
        extra_test_environments={name: environments[name] for name in extra},
        agents=agents,
        combined_agents=combined,
    )
