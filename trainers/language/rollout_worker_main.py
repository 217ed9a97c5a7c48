"""Main module of the process of :mod:`trainers.language.rollout_worker`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.rollouts.transcripts import save_report_transcripts
from ratchet.scenarios.registry import assemble_scenario_instance, build_scenario
from trainers.language.trainer import LanguageTrainer
from trainers.registry import trainer_class
from trainers.subprocess_worker import Answer, serve


def _play(trainers: dict[str, LanguageTrainer], request: Answer) -> Answer:
    """Execute a request in the process."""
    if not trainers:
        trainers["trainer"] = _make(request)
    trainer = trainers["trainer"]
    initial_folder, to = Path(request["beginning"]), Path(request["to"])
    trainer.load_state(Path(request["state"]), "", lambda _: initial_folder)
    if trainer.has_stopped:
        return {}
    if trainer.iteration == request["iteration"]:
        rollouts = trainer.rollouts_of(request["iteration"])
    else:
        rollouts = trainer.play_rollouts(request["iteration"], cursor=request["cursor"])
    rollouts.save(to)
    if request["transcripts"]:
        transcripts = trainer.transcripts("train", rollouts.trajectories)
        save_report_transcripts(to / request["transcripts"], transcripts)
    return {}


def _make(request: dict[str, Any]) -> LanguageTrainer:
    """Build the same trainer as the parent's."""
    settings = ExperimentSettings.from_dict(request["settings"])
    base = settings.base_dir
    base_path = None if base is None else Path(base)
    hyper_params = HyperParameters.from_dict(request["hyper_params"], base)
    load = build_scenario(hyper_params.scenario, base_path).load_dataset
    trainer_cls = trainer_class(hyper_params, base)
    datasets = {path.name: load(path) for path in sorted(Path(request["datasets"]).iterdir())}
    instance = assemble_scenario_instance(
        hyper_params, settings, datasets, trainer_cls.trainer_type, base_path
    )
    trainer = trainer_cls(hyper_params, instance, settings)
    assert isinstance(trainer, LanguageTrainer)  # like the parent's
    trainer.only_plays = True
    return trainer


if __name__ == "__main__":
    serve(partial(_play, {}))
