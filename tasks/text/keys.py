"""Which stages an arm of chat models consists of, in which order, and the key of each.

Plans and runs both go through :meth:`TextArmKeys.stages`, so that what ``ratchet plan`` says is
what happens. Reads sources and parameters only: no data, no agents.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from tasks.stages.calls import TEST_DATASET, StageCall
from tasks.stages.keys import BaseKeys
from tasks.stages.playing_code import class_that_plays

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratchet.store.fingerprint import Fingerprint
    from ratchet.tracking.manifest import ModelKind
    from tasks.stages.sequence import Chain, Course, Step
    from trainers.text.staged import StagedTextTrainer

STAGE_VERSIONS = {
    "build_scenario": 1,
    "initial_state": 1,
    "sample_rollouts": 1,
    "log_stats": 1,
    "test_during_training": 1,
    "create_fine_tune_jobs": 1,
    "await_fine_tune_jobs": 1,
    "test": 1,
}
"""Raised when a task writes other files or calls its trainer otherwise: they are made anew."""

_PLAYING = ("sample_rollouts", "test_during_training", "test")


class TextArmKeys(BaseKeys):
    """The stages of one arm of chat models.

    The state at the beginning of iteration i comes from ``await_fine_tune_jobs`` of iteration
    i − 1, that of iteration 0 from ``initial_state``. The last iteration makes no jobs.
    """

    stage_versions = STAGE_VERSIONS
    model_kind: ModelKind = "chat_models"
    """What its final agents are to whoever loads them."""

    @property
    def num_iterations(self) -> int:
        """The number of the arm's iterations."""
        return int(self.text_class.count_train_iterations(self.hyper_params))

    def training(self, course: Course) -> Iterator[Step]:
        """Go through data, initial state, and for each iteration: sample, then what goes on beside.

        Statistics, a test and fine-tuning all begin with an iteration's rollouts or state. Where
        nothing is trained, only the tests of the states are left.
        """
        yield self.build_scenario()
        if not self.only_tests:
            yield self.initial_state()
        for iteration in range(self.num_iterations):
            beside: list[Chain] = []
            if not self.only_tests:
                yield self.sample_rollouts(iteration)
                if self.is_steered:  # what comes next depends on it
                    yield self.log_stats(iteration)
                else:
                    beside.append(iter([self.log_stats(iteration)]))
            if self.tests_during_training(iteration):
                beside.append(iter([self.test_during_training(iteration)]))
            if self.makes_jobs(iteration) and not self.only_tests:
                beside.append(self._fine_tuning(iteration))
            yield tuple(beside)

    def _fine_tuning(self, iteration: int) -> Chain:
        yield self.create_fine_tune_jobs(iteration)
        yield self.await_fine_tune_jobs(iteration)

    def tests(self, course: Course) -> Iterator[Step]:
        """Go through the tests of the final state on each dataset."""
        for dataset in course.tested(self):
            yield self.test(dataset)

    def sample_rollouts(self, iteration: int) -> StageCall:
        """Return the stage that samples the rollouts of an iteration."""
        return self._playing("sample_rollouts", iteration, self.state_key(iteration))

    def log_stats(self, iteration: int) -> StageCall:
        """Return the stage that computes the statistics of an iteration's rollouts."""
        inputs: dict[str, str | int] = {"rollouts": self.sample_rollouts(iteration).key}
        if self.has_callbacks and iteration > 0:
            inputs["callbacks"] = self.log_stats(iteration - 1).key
        return self._in_iteration("log_stats", iteration, inputs)

    def test_during_training(self, iteration: int) -> StageCall:
        """Return the stage that tests the state at the beginning of an iteration."""
        return self._playing("test_during_training", iteration, self.state_key(iteration))

    def create_fine_tune_jobs(self, iteration: int) -> StageCall:
        """Return the stage that has models fine-tuned on an iteration's rollouts."""
        inputs: dict[str, str | int] = {
            "state": self.state_key(iteration),
            "rollouts": self.sample_rollouts(iteration).key,
        }
        for earlier in self.earlier_rollouts(iteration):
            inputs[f"rollouts.{earlier.iteration}"] = earlier.key
        if self.is_steered:
            inputs["callbacks"] = self.log_stats(iteration).key
        return self._in_iteration("create_fine_tune_jobs", iteration, inputs)

    def await_fine_tune_jobs(self, iteration: int) -> StageCall:
        """Return the stage that waits for an iteration's jobs and switches models."""
        inputs: dict[str, str | int] = {"jobs": self.create_fine_tune_jobs(iteration).key}
        return self._in_iteration("await_fine_tune_jobs", iteration, inputs)

    def test(self, dataset: str = TEST_DATASET) -> StageCall:
        """Return the stage that tests the final state on a dataset."""
        return self._playing("test", self.num_iterations, self.final_state_key, dataset)

    def state_key(self, iteration: int) -> str:
        """Return the key of the stage whose result is the state at an iteration's beginning."""
        known = self._state_keys
        for done in range(max(known), iteration):  # one after the other, however many there are
            known[done + 1] = self.await_fine_tune_jobs(done).key
        return known[iteration]

    @property
    def final_state_key(self) -> str:
        """The key of the stage whose result is the state after all training."""
        if self.is_steered and self.num_iterations > 0 and not self.only_tests:
            return self.log_stats(self.num_iterations - 1).key
        return self.state_key(max(self.num_iterations - 1, 0))

    @property
    def needed_states(self) -> list[tuple[str, int]]:
        """The stages whose results are tested where nothing is trained."""
        jobs = range(self.num_iterations - 1)
        return [("initial_state", 0), *(("await_fine_tune_jobs", done) for done in jobs)]

    def earlier_rollouts(self, iteration: int) -> list[StageCall]:
        """Return the stages whose rollouts an iteration learns from too, oldest first."""
        if not self.hyper_params.text_rl.fine_tune_on_all_previous_rollouts:
            return []
        return [self.sample_rollouts(earlier) for earlier in range(iteration)]

    def tests_during_training(self, iteration: int) -> bool:
        """Return whether the agents are tested in an iteration."""
        return bool(self.text_class.tests_during_training(self.hyper_params, iteration))

    @property
    def has_callbacks(self) -> bool:
        """Whether callbacks look at iterations, in the stage of the statistics."""
        return any(spec.takes_part("log_stats") for spec in self.callbacks)

    @property
    def is_steered(self) -> bool:
        """Whether callbacks may stop the run: fine-tuning waits for them then."""
        return any(spec.kind.steers for spec in self.callbacks)

    def tested_before(self, dataset: str) -> StageCall | None:
        """Return the stage in training that has tested the final state, if there is one.

        It has played the same datapoints with the same seeds.
        """
        last = self.num_iterations - 1
        if dataset != TEST_DATASET or last < 0 or not self.tests_during_training(last):
            return None
        if any(spec.may_change_tests for spec in self.callbacks):
            return None
        return self.test_during_training(last)

    def makes_jobs(self, iteration: int) -> bool:
        """Return whether models are fine-tuned in an iteration: in all but the last."""
        return iteration < self.num_iterations - 1

    def stage_parameters(self, stage: str, iteration: int, detail: str) -> dict[str, Any]:
        """Return the parameters that a stage of the trainer's reads, as plain data."""
        return self.text_class.stage_key_parameters(self.hyper_params, stage, iteration)

    def _ends_training(self, stage: str, iteration: int) -> bool:
        return stage == "log_stats" and iteration == self.num_iterations - 1

    def _playing(self, stage: str, iteration: int, state: str, dataset: str = "") -> StageCall:
        """Return a stage that plays the game with the models of a state."""
        inputs: dict[str, str | int] = {"data": self.build_scenario().key, "state": state}
        if dataset:
            inputs["dataset"] = dataset
        return self._in_iteration(stage, iteration, inputs, dataset)

    def _in_iteration(
        self, stage: str, iteration: int, inputs: dict[str, str | int], detail: str = ""
    ) -> StageCall:
        code = self._fingerprint_of(stage)
        return self._call(stage, inputs, code, iteration=iteration, detail=detail)

    def _fingerprint_of(self, stage: str) -> Fingerprint:
        return self._playing_fingerprint if stage in _PLAYING else self._code_fingerprint

    @cached_property
    def _playing_fingerprint(self) -> Fingerprint:
        """The code that plays: without a class that only says how to learn from what was played.

        So an edit of what is learned from does not make rollouts anew, and pay for them again.
        """
        return self._fingerprint_with(class_that_plays(self.trainer_class))

    @cached_property
    def _state_keys(self) -> dict[int, str]:
        """The keys of the states at the beginning of the first iterations."""
        return {0: self.initial_state().key}

    @property
    def text_class(self) -> type[StagedTextTrainer]:
        """The class of the trainer."""
        from trainers.text.staged import StagedTextTrainer

        found = self.trainer_class
        assert issubclass(found, StagedTextTrainer)  # else the arm is of another family
        return found
