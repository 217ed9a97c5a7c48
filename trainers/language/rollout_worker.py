"""``RolloutWorker``: collects the next rollouts in a separate process while a trainer learns.

The process builds the same trainer, continues from the given state, and writes its rollouts into a
folder: the same bits as if the trainer had collected them itself.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.language.rollouts import Rollouts
from trainers.subprocess_worker import SubprocessWorker

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.scenarios.language_task.task import TaskDataset
    from trainers.language.state import LanguageState

_PROCESS = "trainers.language.rollout_worker_main"


class RolloutWorker:
    """Sends requests to the process, which is started on first use.

    Parameters
    ----------
    hyper_params, settings
        Those of the experiment.
    datasets
        The folder of its datasets, with a subfolder for each name.
    """

    def __init__(
        self, hyper_params: HyperParameters, settings: ExperimentSettings, datasets: Path
    ) -> None:
        self._experiment = {
            "hyper_params": hyper_params.to_dict(),
            "settings": {**settings.to_dict(), "progress": "none"},
            "datasets": str(datasets),
        }
        self._worker = SubprocessWorker(_PROCESS, "rollouts collected during training")

    @property
    def pid(self) -> int | None:
        """The id of the process; None if none is running."""
        return self._worker.pid

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
        """Start an iteration's rollouts with the weights of a state.

        Parameters
        ----------
        state
            The state's folder; rollouts stored in it are not collected again.
        to
            The folder for the rollouts.
        beginning
            The folder of the state with the initial models.
        cursor
            Start position in the training set, if not the state's.
        transcripts
            The name of the file with transcripts for the report; empty for none.

        Returns
        -------
        Callable
            Waits for the rollouts; None if a callback had stopped the run. Raises the errors of
            the process.
        """
        request = {"state": str(state), "iteration": iteration, "to": str(to), "cursor": cursor}
        paths = {"beginning": str(beginning), "transcripts": transcripts}
        self._worker.ask({**self._experiment, **request, **paths})

        def wait() -> Rollouts | None:
            self._worker.wait()
            return Rollouts.load(to)

        return wait

    def close(self) -> None:
        """Terminate the process, even during a request."""
        self._worker.close()


class TrainerRolloutWorker:
    """Rollout worker of a trainer that passes its state directly, between two iterations.

    Parameters
    ----------
    hyper_params, settings
        Of the experiment.
    datasets
        Its datasets by name.
    save_model
        Writes the current model into a folder, as the initial one.
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
        self._worker = RolloutWorker(hyper_params, settings, self._folder / "datasets")

    @property
    def pid(self) -> int | None:
        """The id of the process; None if none is running."""
        return self._worker.pid

    def play(self, state: LanguageState, iteration: int) -> Callable[[], Rollouts]:
        """Start an iteration's rollouts with a state's weights; return a function that waits."""
        folder, to = (self._folder / name for name in ("state", "played"))
        to.mkdir(exist_ok=True)
        # models are in the given folder; callbacks, which may stop this run, are not called
        replace(state, initial=folder.name, callbacks={}, callback_tensors={}).save(folder)
        wait = self._worker.play(folder, iteration, to, beginning=self._folder)

        def played() -> Rollouts:
            rollouts = wait()
            assert rollouts is not None  # a stopped trainer makes no requests
            return rollouts

        return played

    def close(self) -> None:
        """End the process and remove its files."""
        self._worker.close()
        self._place.cleanup()
