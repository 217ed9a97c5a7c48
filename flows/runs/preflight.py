"""Preflight: check that a resolved experiment can run in this process, before it starts.

Checks what validating parameters cannot: devices, packages, the store's location. Runs and workers
refuse to start with problems; ``ratchet plan`` and ``ratchet doctor FILE`` report them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError, RatchetError, nearest
from ratchet.lazy import require_packages
from ratchet.parameters.reading.messages import raise_together
from ratchet.scenarios.registry import build_scenario
from trainers.registry import TRAINERS

if TYPE_CHECKING:
    from flows.runs.resolve import ResolvedExperiment
    from ratchet.parameters.hyper_parameters import HyperParameters

_MOST_STAGES = 50_000
_DEVICES = ("cpu", "cuda", "mps", "xpu")


def check_experiment(experiment: ResolvedExperiment) -> None:
    """Refuse an experiment that cannot run here.

    Raises the only problem itself, several as a ParameterError with a line for each.
    """
    raise_together(find_problems(experiment))


def find_problems(experiment: ResolvedExperiment) -> list[RatchetError]:
    """Return the problems that prevent an experiment from running here, without side effects.

    Files of tasks are read only if there is no other problem.
    """
    problems = list(_component_problems(experiment))
    if not problems:
        try:
            _check_new_tasks(experiment)
        except RatchetError as error:
            problems.append(error)
    return problems


def _component_problems(experiment: ResolvedExperiment) -> Iterator[RatchetError]:
    base_dir = experiment.settings.base_dir
    folder = None if base_dir is None else Path(base_dir)
    try:
        check_devices(experiment)
    except RatchetError as error:
        yield error
    for hyper_params in experiment.arms.values():
        try:
            _check_stages(hyper_params, experiment.settings.iterations_per_task)
            _check_components(hyper_params, folder)
            TRAINERS.find(hyper_params.trainer, folder).check_build(hyper_params, folder)
        except RatchetError as error:
            yield error
    if experiment.settings.runner != "inline":
        from flows.runners.factory import check_runner

        try:
            check_runner(experiment.settings)
        except RatchetError as error:
            yield error
    try:
        experiment.store  # noqa: B018 -- created on first access
    except RatchetError as error:
        yield error


def _check_new_tasks(experiment: ResolvedExperiment) -> None:
    """Check files of tasks, unless their data is stored: large ones take seconds to read."""
    if all(arm.scenario != "language_task" for arm in experiment.arms.values()):
        return
    from ratchet.scenarios.language_task.sources.repeated_tasks import check_repeated_tasks

    base_dir = experiment.settings.base_dir
    new = {
        keys.hyper_params.dataset
        for keys in experiment.keys
        if keys.hyper_params.scenario == "language_task"
        and experiment.store.peek(keys.build_scenario().key, allow_stale=True) is None
    }
    for dataset in sorted(new):
        check_repeated_tasks(dataset, None if base_dir is None else Path(base_dir))


def check_devices(experiment: ResolvedExperiment) -> None:
    """Check that the devices of an experiment are available."""
    name, base_dir = experiment.settings.device, experiment.settings.base_dir
    if name == "cpu":
        return
    check_device(name)
    folder = None if base_dir is None else Path(base_dir)
    from trainers.language.base import BaseTrainer

    is_local = experiment.settings.rank_cluster is None
    for hyper_params in experiment.arms.values():
        trainer = TRAINERS.find(hyper_params.trainer, folder)
        if issubclass(trainer, BaseTrainer):
            kind, _, first = name.partition(":")
            required = trainer.needed_devices(hyper_params)
            _check_count(kind, required, first=int(first or 0), is_local=is_local)


def _check_stages(hyper_params: HyperParameters, per_task: int) -> None:
    """Refuse more stages than the store and Prefect can handle."""
    iterations = hyper_params.rl.num_iterations
    if iterations > _MOST_STAGES * per_task:
        raise ParameterError(
            f"rl.num_iterations: got {iterations:,} with settings.iterations_per_task={per_task},"
            f" which is more than {_MOST_STAGES:,} stages of training; expected fewer iterations,"
            " or more of them in a stage."
        )


def _check_count(kind: str, required: int, *, first: int, is_local: bool) -> None:
    import torch

    if required > 1 and kind not in ("cpu", "cuda"):
        raise ParameterError(
            f"language.train_service.world_size: got {required} with settings.device={kind}, where"
            " processes can't share a model; expected 1, or settings.device=cuda or cpu."
        )
    if (
        is_local
        and kind == "cuda"
        and required > (count := torch.accelerator.device_count() - first)
    ):
        raise ParameterError(
            f"language.train_service.world_size: got {required} with settings.device=cuda:{first},"
            f" expected at most {count}, a device for each process from this one on. Lower it, or"
            " choose an earlier device, or settings.device=cpu."
        )


def check_device(name: str) -> None:
    """Check that torch supports a device and finds it here, without creating a GPU context."""
    if name == "cpu":
        return
    import torch

    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ParameterError(
            f"settings.device: got {name!r}, expected cpu, cuda, cuda:N or mps."
            f"{nearest(name.partition(':')[0], _DEVICES)}"
        ) from error
    if device.type == "cpu":
        return
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != device.type:
        available_type = accelerator.type if accelerator else "no accelerator"
        raise ParameterError(
            f"settings.device: got {name!r}, but torch {torch.__version__} finds {available_type}"
            " on this machine. Remove the setting, or set settings.device=cpu; for a GPU, install"
            " its driver and a torch build that supports it."
        )
    count = torch.accelerator.device_count()
    if device.index is not None and device.index >= count:
        raise ParameterError(
            f"settings.device: got {name!r}, expected an index below the {count} available"
            f" devices, at most {device.type}:{count - 1}."
        )


def _check_components(hyper_params: HyperParameters, base_dir: Path | None) -> None:
    """Raise an error for missing packages, or unusable files, of the scenario and trainer."""
    trainer = TRAINERS.find(hyper_params.trainer, base_dir)
    require_packages(
        trainer.required_packages(hyper_params), f"trainer: {hyper_params.trainer_name!r}"
    )
    if hyper_params.evaluation.suites:
        from ratchet.language_models.suites.resolution import check_suites

        check_suites(hyper_params.evaluation, base_dir)
    scenario = build_scenario(hyper_params.scenario, base_dir)
    require_packages(
        scenario.needed_packages(hyper_params),
        f"scenario: {hyper_params.scenario!r} with dataset {hyper_params.dataset!r}",
    )
