"""``Player``: plays what is learned from next in a process of its own, while a trainer learns.

The process makes the same trainer, goes on from the state that it is shown, and writes what it has
played into a folder: the same bits as if the trainer had played itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainers.companion import Answer, Companion, serve
from trainers.language.rollouts import Rollouts

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from trainers.language.trainer import LanguageTrainer


class Player:
    """Asks the process, which is started when it is first needed.

    Parameters
    ----------
    hyper_params, settings
        Of the experiment.
    datasets
        Where each of its datasets lies, in a folder of its name.
    """

    def __init__(
        self, hyper_params: HyperParameters, settings: ExperimentSettings, datasets: Path
    ) -> None:
        self._experiment = {
            "hyper_params": hyper_params.to_dict(),
            "settings": {**settings.to_dict(), "progress": "none"},
            "datasets": str(datasets),
        }
        self._companion = Companion(__name__, "rollouts that are played while a trainer learns")

    @property
    def pid(self) -> int | None:
        """The number of the process; None while there is none."""
        return self._companion.pid

    def play(
        self,
        state: Path,
        iteration: int,
        to: Path,
        *,
        beginning: Path,
        cursor: int | None = None,
        transcripts: str = "",
    ) -> Callable[[], Rollouts | None]:
        """Begin to play an iteration with the weights of a state.

        Parameters
        ----------
        state
            The state's folder; what it has played ahead is not played again.
        to
            Where what was played is written.
        beginning
            The folder of the state with the models at the beginning.
        cursor
            Where in the training set to begin, if not where the state says.
        transcripts
            The name of the file with what was said, for the report; none without.

        Returns
        -------
        Callable
            Waits for what was played; None if a callback had stopped the run. Raises what the
            process has met.
        """
        asked = {"state": str(state), "iteration": iteration, "to": str(to), "cursor": cursor}
        given = {"beginning": str(beginning), "transcripts": transcripts}
        self._companion.ask({**self._experiment, **asked, **given})

        def wait() -> Rollouts | None:
            self._companion.wait()
            return Rollouts.load(to)

        return wait

    def close(self) -> None:
        """End the process, in the middle of its work if need be."""
        self._companion.close()


class BesideTrainer:
    """The player of a trainer that hands over its state itself, between two of its iterations."""

    def __init__(self, trainer: LanguageTrainer) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="ratchet-beside-")
        self._folder = Path(self._place.name)
        for name, dataset in trainer.scenario_instance.datasets.items():
            dataset.save(self._folder / "datasets" / name)
        trainer.save_model_in(self._folder)
        self._player = Player(trainer.hyper_params, trainer.settings, self._folder / "datasets")

    @property
    def pid(self) -> int | None:
        """The number of the process; None while there is none."""
        return self._player.pid

    def play(self, trainer: LanguageTrainer, iteration: int) -> Callable[[], Rollouts]:
        """Begin to play an iteration with the trainer's state as it is; return how to wait."""
        state, to = (self._folder / name for name in ("state", "played"))
        to.mkdir(exist_ok=True)
        replace(trainer.state, initial=state.name).save(state)  # its models lie where we put them
        wait = self._player.play(state, iteration, to, beginning=self._folder)

        def played() -> Rollouts:
            found = wait()
            assert found is not None  # a trainer that has been stopped asks for nothing
            return found

        return played

    def close(self) -> None:
        """End the process and remove its files."""
        self._player.close()
        self._place.cleanup()


def _play(made: dict[str, LanguageTrainer], request: Answer) -> Answer:
    """Play what is asked for, in the process."""
    if not made:
        made["trainer"] = _make(request)
    trainer = made["trainer"]
    beginning, to = Path(request["beginning"]), Path(request["to"])
    trainer.load_state(Path(request["state"]), "", lambda _: beginning)
    if trainer.has_stopped:
        return {}
    if trainer.iteration == request["iteration"]:
        rollouts = trainer.rollouts_of(request["iteration"])
    else:
        rollouts = trainer.play_rollouts(request["iteration"], cursor=request["cursor"])
    rollouts.save(to)
    if request["transcripts"]:
        from ratchet.rollouts.transcripts import save_report_transcripts

        said = trainer.transcripts("train", rollouts.trajectories)
        save_report_transcripts(to / request["transcripts"], said)
    return {}


def _make(request: dict[str, Any]) -> LanguageTrainer:
    """Make the trainer of an experiment, as whoever asks has it."""
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.building import build_scenario_instance
    from ratchet.scenarios.registry import build_scenario
    from trainers.language.trainer import LanguageTrainer
    from trainers.registry import trainer_class

    settings = ExperimentSettings.from_dict(request["settings"])
    base = settings.base_dir
    base_path = None if base is None else Path(base)
    hyper_params = HyperParameters.from_dict(request["hyper_params"], base)
    load = build_scenario(hyper_params.scenario, base_path).load_dataset
    found = trainer_class(hyper_params, base)
    datasets = {path.name: load(path) for path in sorted(Path(request["datasets"]).iterdir())}
    instance = build_scenario_instance(
        hyper_params,
        settings,
        datasets=datasets,
        trainer_type=found.trainer_type,
        base_dir=base_path,
    )
    trainer = found(hyper_params, instance, settings)
    assert isinstance(trainer, LanguageTrainer)  # as that of whoever asks
    return trainer


if __name__ == "__main__":
    serve(partial(_play, {}))
