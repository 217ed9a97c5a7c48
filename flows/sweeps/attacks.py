"""The experiment that attacks an agent: the agent is loaded and frozen, the others are new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ratchet.errors import CheckPointNotFoundError, ParameterError, nearest
from ratchet.experiment_files.base_run import name_arm
from ratchet.parameters.base import SECTIONS
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.sweeps import ZipSweep
from ratchet.tracking.run_folder import find_run
from ratchet.tracking.stage_kinds import kind_of
from ratchet.tracking.trainer_files import STATE_FOLDER
from trainers.registry import trainer_class

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings

_LEARNS: dict[str, Any] = {"update_schedule": {"kind": "constant"}}


def is_chat_run(trained: HyperParameters) -> bool:
    """Return whether a run's agents are chat models."""
    return any(trained.agents[name].is_text for name in trained.agents)


def attack_parameters(
    trained: HyperParameters,
    others: Sequence[str],
    run: tuple[str, str],
    agent: str,
    settings: ExperimentSettings,
) -> HyperParameters:
    """Return the parameters of an attack on an agent of a run.

    Parameters
    ----------
    trained
        Parameters of the attacked arm.
    others
        The attackers.
    run
        Id of the run, and the arm.
    agent
        The attacked agent.
    settings
        Settings that contain the runs folder.
    """
    if is_chat_run(trained):
        new = {"freeze_agent": False, **_LEARNS}
        model = trained_models(run, settings)[agent]
        frozen = {"model_name": model, "shared_model_group": None, "freeze_agent": True}
    else:
        new, frozen = _networks(trained, name_arm(*run), agent, others)
    data = trained.to_dict()
    data["agents"] |= {name: {**trained.agents[name].to_dict(), **new} for name in others}
    data["agents"][agent] = {**trained.agents[agent].to_dict(), **frozen}
    data |= {"phases": [], "callbacks": [], "pretrain_agents": False}
    data["rl"] |= {"test_by_sampling": trained.rl.test_by_sampling is True}
    data["protocol_common"] |= {"shared_reward": False}
    data["imitation"] |= {"agents": [n for n in trained.imitation.agents if n in others]}
    data["pure_text_grpo"]["redraws"].pop(agent, None)
    return HyperParameters.from_dict(fixed_data(data, trained))


def _networks(
    trained: HyperParameters, source: str, agent: str, others: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the changes of the attackers, and those of the attacked agent."""
    new = {"load_checkpoint_and_parameters": False, "checkpoint_run_id": None, **_LEARNS}
    new |= {"is_random": False, "use_manual_architecture": False}
    new |= {name: {} for name in trained.agents[agent].to_dict() if name.endswith("lr_factor")}
    block = {"agents": others, "num_iterations": 1}
    frozen = {
        "load_checkpoint_and_parameters": True,
        "checkpoint_run_id": source,
        "checkpoint_version": "latest",
        "update_schedule": {"kind": "alternating_blocks", "blocks": [block]},
    }
    return new, frozen


def other_agents(names: Sequence[str], agent: str) -> list[str]:
    """Return the attackers; ParameterError if the attacked agent or others are missing."""
    others = [name for name in names if name != agent]
    if agent not in names or not others:
        raise ParameterError(
            f"exploit: got the agent {agent!r}, expected one of {list(names)} with others to attack"
            f" it.{nearest(agent, names)}"
        )
    return others


def trained_models(run: tuple[str, str], settings: ExperimentSettings) -> dict[str, str]:
    """Return the service's names of the agents' models at the end of a run's arm.

    Raises CheckPointNotFoundError if the store has no such state.
    """
    from ratchet.store.store import StageStore
    from trainers.text.state import State

    run_id, arm = run
    folder, store = find_run(settings.runs, run_id), StageStore(settings.store_url)
    stored_records = [
        record
        for record in folder.manifest.stages
        if record.arm == arm and kind_of(record.stage).state and store.peek(record.key) is not None
    ]
    if not stored_records:
        raise CheckPointNotFoundError(
            f"exploit: run {run_id} has no models in the store {settings.store_url}, expected those"
            f" after its training. Finish it with `ratchet resume {run_id}`."
        )
    last = max(
        stored_records,
        key=lambda record: (kind_of(record.stage).state == "trained", record.iteration),
    )
    agents = State.load(store.open(last.key) / STATE_FOLDER).agents
    return {name: agent.model_name for name, agent in agents.items()}


def attack_grid(
    trained: HyperParameters,
    others: Sequence[str],
    learning_rates: Sequence[float],
    seeds: Sequence[int],
    settings: ExperimentSettings,
) -> ZipSweep | Mapping[str, Any]:
    """Return the sweep over learning rates, if there are some, and seeds."""
    if not learning_rates:
        return {"seed": list(seeds)}
    rates = {path: list(learning_rates) for path in _learning_rates(trained, others, settings)}
    return ZipSweep(parameters=rates, for_each={"seed": list(seeds)})


def _learning_rates(
    trained: HyperParameters, others: Sequence[str], settings: ExperimentSettings
) -> list[str]:
    """Return the parameters that contain the attackers' learning rate."""
    if not is_chat_run(trained):
        return ["rl.lr"]
    from trainers.text.grpo import PureTextGrpoTrainer

    if issubclass(trainer_class(trained, settings.base_dir), PureTextGrpoTrainer):
        return ["pure_text_grpo.lr"]
    return [f"agents.{name}.fine_tuning.learning_rate_multiplier" for name in others]


def fixed_data(data: dict[str, Any], trained: HyperParameters) -> dict[str, Any]:
    """Let parameters ``data`` use a run's datasets with any seed."""
    for section in SECTIONS.values():
        if trained.scenario in section.scenarios and "dataset_seed" in data.get(section.name, {}):
            chosen = data[section.name]["dataset_seed"]
            data[section.name]["dataset_seed"] = trained.seed if chosen is None else chosen
    return data
