"""``Player``: plays what is learned from next in a process of its own, while a trainer learns.

The process makes the same trainer, goes on from the state that it is shown, and writes what it has
played into a folder: the same bits as if the trainer had played itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.companion import Companion
from trainers.language.rollouts import Rollouts

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.language_task.task import TaskDataset
    from trainers.language.state import LanguageState

_PROCESS = "trainers.language.player_process"


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
        self._companion = Companion(_PROCESS, "rollouts that are played while a trainer learns")

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
    """The player of a trainer that hands over its state itself, between two of its iterations.

    Parameters
    ----------
    hyper_params, settings
        Of the experiment.
    datasets
        Its datasets by name.
    save_model
        Writes the model into a folder, as that at the beginning.
    """

    def __init__(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        datasets: Mapping[str, TaskDataset],
        save_model: Callable[[Path], None],
    ) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="ratchet-beside-")
        self._folder = Path(self._place.name)
        for name, dataset in datasets.items():
            dataset.save(self._folder / "datasets" / name)
        save_model(self._folder)
        self._player = Player(hyper_params, settings, self._folder / "datasets")

    @property
    def pid(self) -> int | None:
        """The number of the process; None while there is none."""
        return self._player.pid

    def play(self, state: LanguageState, iteration: int) -> Callable[[], Rollouts]:
        """Begin to play an iteration with the weights of a state; return how to wait."""
        place, to = (self._folder / name for name in ("state", "played"))
        to.mkdir(exist_ok=True)
        # its models lie where we put them; of callbacks, which may stop this run, none is called
        replace(state, initial=place.name, callbacks={}, callback_tensors={}).save(place)
        wait = self._player.play(place, iteration, to, beginning=self._folder)

        def played() -> Rollouts:
            found = wait()
            assert found is not None  # a trainer that has been stopped asks for nothing
            return found

        return played

    def close(self) -> None:
        """End the process and remove its files."""
        self._player.close()
        self._place.cleanup()
