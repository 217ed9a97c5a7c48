"""Interface of text trainers whose iterations are split into stored stages.

Implemented by ``PureTextRlTrainer``; used by its own loop and by the tasks that run it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ratchet.language_models.ledger import Ledger
from ratchet.language_models.pricing import Budget
from ratchet.parameters.purposes import Purpose
from trainers.stage_parameters import StagePurposes

if TYPE_CHECKING:
    from ratchet.language_models.usage import UsageMeter
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.rollouts.nested_array_dict import NestedArrayDict
    from trainers.text.jobs import AroundJob
    from trainers.text.state import State

Metrics = dict[str, float]
_SPOKEN = frozenset({Purpose.GAME, Purpose.SPEECH})
_JUDGED = _SPOKEN | {Purpose.CHAT_TESTS, Purpose.REPORTS}
TEXT_STAGES: StagePurposes = {
    "initial_state": frozenset({Purpose.GAME}),
    "sample_rollouts": _SPOKEN | {Purpose.ROLLOUTS, Purpose.BRANCHES},
    "log_stats": frozenset({Purpose.GAME, Purpose.REPORTS}),
    "test_during_training": _JUDGED,
    "create_fine_tune_jobs": _SPOKEN | {Purpose.FINE_TUNING},
    "await_fine_tune_jobs": frozenset(),  # the awaited jobs are in the state
    "test": _JUDGED,
}
"""Stage → purposes for which it reads parameters."""


class StagedTextTrainer(ABC):
    """A trainer whose iterations are split into stages.

    The inputs of each stage are :attr:`state` and its arguments; it does not depend
    on earlier stages of the process. Not thread-safe: concurrent stages need separate trainers.
    """

    settings: ExperimentSettings

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger of calls and jobs; a run's stages receive the run's ledger."""
        return Ledger(Budget(self.settings.budget))

    @classmethod
    def supports_stages(cls) -> bool:
        """Return whether stages are equivalent to :meth:`Trainer.train`."""
        return True

    @classmethod
    def count_train_iterations(cls, hyper_params: HyperParameters) -> int:
        """Return the number of training iterations, before any component is built."""
        return int(hyper_params.rl.num_iterations)

    @classmethod
    def tests_during_training(cls, hyper_params: HyperParameters, iteration: int) -> bool:
        """Return whether the agents are tested in an iteration, by ``text_rl.test_scheme``."""
        last = iteration == cls.count_train_iterations(hyper_params) - 1
        match hyper_params.text_rl.test_scheme:
            case "all":
                return True
            case "last":
                return last
            case "first_and_last":
                return last or iteration == 0
            case _:
                return False

    @classmethod
    def responses_per_step(cls, hyper_params: HyperParameters) -> int:
        """Return the number of replies sampled at each step: 1 for a game, more for a tree."""
        return 1

    @classmethod
    def redraws_per_turn(cls, hyper_params: HyperParameters) -> Mapping[str, int]:
        """Return how often each turn of an agent is sampled again from its prefix, by agent."""
        return {}

    @classmethod
    def declares_sample_count(cls) -> bool:
        """Return whether the numbers of replies are correct for how the class samples."""
        return True

    @classmethod
    def examples_per_rollout(cls, hyper_params: HyperParameters, num_rounds: int) -> float:
        """Return the largest number of an agent's examples from a game or a tree."""
        return 1.0

    @classmethod
    @abstractmethod
    def stage_key_parameters(
        cls, hyper_params: HyperParameters, stage: str, iteration: int = 0
    ) -> dict[str, Any]:
        """Return the parameters that a stage reads, as plain data.

        Stages are ``"initial_state"``, ``"sample_rollouts"``, ``"log_stats"``,
        ``"test_during_training"``, ``"create_fine_tune_jobs"``, ``"await_fine_tune_jobs"`` and
        ``"test"``. Raises UnknownNameError for any other.
        """

    @property
    @abstractmethod
    def num_train_iterations(self) -> int:
        """The number of training iterations."""

    @abstractmethod
    def initial_state(self) -> State:
        """Create the state before any training, and continue from it."""

    @property
    @abstractmethod
    def state(self) -> State:
        """The current state."""

    @state.setter
    @abstractmethod
    def state(self, state: State) -> None:
        """Continue from a state."""

    @abstractmethod
    def sample_rollouts(
        self, iteration: int, journal_path: Path
    ) -> tuple[NestedArrayDict, UsageMeter]:
        """Collect the rollouts of the state's iteration with its models.

        Finished calls are stored in the journal until the rollouts are; those already in it are not
        repeated. Raises RolloutError if a rollout failed, after all others were completed and
        journalled.
        """

    @abstractmethod
    def compute_stats(self, iteration: int, rollouts: NestedArrayDict) -> Metrics:
        """Return the statistics of the iteration's rollouts, including those of callbacks.

        Afterwards the state contains the callbacks' states, and whether one has stopped the run.
        """

    @property
    def has_stopped(self) -> bool:
        """Whether a callback has ended the training: the remaining iterations are skipped."""
        return False

    def load_callbacks(self, state: State) -> None:  # noqa: B027 -- not every trainer has any
        """Restore only the callbacks' states."""

    @abstractmethod
    def test(
        self, iteration: int | Literal["test"], journal_path: Path, dataset: str = "test"
    ) -> tuple[NestedArrayDict, Metrics, UsageMeter]:
        """Collect and evaluate test rollouts with the models of the state, which is not changed.

        Datapoints and seeds depend neither on the iteration nor on the models, so that tests are
        paired. ``iteration`` is the state's, or ``"test"`` for the test after training; the journal
        is as in :meth:`sample_rollouts`.
        """

    @abstractmethod
    def create_fine_tune_jobs(
        self,
        iteration: int,
        rollouts: NestedArrayDict,
        previous_rollouts: Sequence[NestedArrayDict] = (),
    ) -> State:
        """Create the jobs that train the next models; return the state with their ids.

        None are created once a callback has stopped the run. A repeated call with the same
        arguments finds the existing jobs. Not for the last iteration. ``previous_rollouts`` are
        those of all earlier iterations, in order, if ``text_rl.fine_tune_on_all_previous_rollouts``
        is set.
        """

    @abstractmethod
    def job_stats(self) -> Metrics:
        """Return, as 0 or 1, whether each shared model group has no job, by reason.

        ``GROUP.insufficient_data`` and ``GROUP.frozen``, for the state after
        :meth:`create_fine_tune_jobs`.
        """

    stage_metrics: Mapping[str, float] = {}
    """Metrics that callbacks added to the last stage, if it has no other metrics."""

    training_usage: UsageMeter | None
    """Usage of the jobs awaited last."""

    around_job: AroundJob | None = None
    """Wrapper that awaits each group's job, e.g. in a separate task; default: the trainer."""

    @abstractmethod
    def await_fine_tune_jobs(self, iteration: int) -> State:
        """Wait for the jobs and switch to their models; return the next iteration's initial state.

        Raises FineTuneError if a job failed, with the service's reason.
        """
