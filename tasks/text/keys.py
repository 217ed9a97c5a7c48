"""Which stages an arm of chat models consists of, and the key of each.

Plans and runs both ask here, so that what ``ratchet plan`` says is what happens. Reads sources
and parameters only: no data, no agents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ratchet.errors import UnknownNameError, nearest
from tasks.stages.calls import ITERATION_STAGES, TEST_DATASET, StageCall
from tasks.stages.keys import BaseKeys
from tasks.stages.playing_code import class_that_plays

if TYPE_CHECKING:
    from ratchet.store.fingerprint import Fingerprint
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

    @property
    def num_iterations(self) -> int:
        """How many iterations the arm has."""
        return int(self._text_class.count_train_iterations(self.hyper_params))

    @property
    def only_tests(self) -> bool:
        """Whether the arm trains nothing, but tests the states of an earlier run again."""
        return bool(self.hyper_params.base_run.base_run_type == "rerun_tests")

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
        if not self._state_keys:
            self._state_keys.append(self.initial_state().key)
        while len(self._state_keys) <= iteration:  # one after the other, however many there are
            self._state_keys.append(self.await_fine_tune_jobs(len(self._state_keys) - 1).key)
        return self._state_keys[iteration]

    @property
    def final_state_key(self) -> str:
        """The key of the stage whose result is the state after all training."""
        if self.is_steered and self.num_iterations > 0 and not self.only_tests:
            return self.log_stats(self.num_iterations - 1).key
        return self.state_key(max(self.num_iterations - 1, 0))

    def earlier_rollouts(self, iteration: int) -> list[StageCall]:
        """List the stages whose rollouts an iteration learns from beside its own, oldest first."""
        if not self.hyper_params.text_rl.fine_tune_on_all_previous_rollouts:
            return []
        return [self.sample_rollouts(earlier) for earlier in range(iteration)]

    def tests_during_training(self, iteration: int) -> bool:
        """Say whether the agents are tested in an iteration."""
        return bool(self._text_class.tests_during_training(self.hyper_params, iteration))

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
        """Say whether models are fine-tuned in an iteration: in all but the last."""
        return iteration < self.num_iterations - 1

    def stages(self, datasets: Sequence[str] = (TEST_DATASET,)) -> Iterator[StageCall]:
        """Go through all stages in the order of the flow; ``datasets`` are those tested on."""
        yield self.build_scenario()
        if not self.only_tests:
            yield self.initial_state()
        for iteration in range(self.num_iterations):
            yield from self.iteration_stages(iteration)
        for dataset in datasets:
            yield self.test(dataset)

    def iteration_stages(self, iteration: int) -> Iterator[StageCall]:
        """Go through the stages of one iteration."""
        if not self.only_tests:
            yield self.sample_rollouts(iteration)
            yield self.log_stats(iteration)
        if self.tests_during_training(iteration):
            yield self.test_during_training(iteration)
        if self.makes_jobs(iteration) and not self.only_tests:
            yield self.create_fine_tune_jobs(iteration)
            yield self.await_fine_tune_jobs(iteration)

    def by_name(self, name: str, iteration: int) -> StageCall:
        """Return a stage by its name in run folders.

        Raises
        ------
        UnknownNameError
            If an arm has no stage of that name.
        """
        if name in ITERATION_STAGES:
            call: StageCall = getattr(self, name)(iteration)
            return call
        kind, _, dataset = name.partition("-")
        if kind == "test":
            return self.test(dataset or TEST_DATASET)
        single = {"build_scenario": self.build_scenario, "initial_state": self.initial_state}
        if name not in single:
            known = (*single, *ITERATION_STAGES, "test")
            raise UnknownNameError(f"stage: unknown {name!r}.{nearest(name, known)}")
        return single[name]()

    def has(self, name: str, iteration: int, key: str) -> bool:
        """Say whether a stage that was recorded under this key is one of the arm's."""
        try:
            call = self.by_name(name, iteration)
        except UnknownNameError:
            return False
        return (call.iteration, call.key) == (iteration, key) and self._takes_place(call)

    def _takes_place(self, call: StageCall) -> bool:
        """Say whether the arm has a stage that :meth:`by_name` can give."""
        if call.stage in ITERATION_STAGES:
            return call in self.iteration_stages(call.iteration)
        return call.stage != "initial_state" or not self.only_tests

    def stage_parameters(self, stage: str, iteration: int, detail: str) -> dict[str, Any]:
        """Return the parameters that a stage of the trainer's reads, as plain data."""
        return self._text_class.stage_key_parameters(self.hyper_params, stage, iteration)

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
    def _state_keys(self) -> list[str]:
        """The keys of the states at the beginning of the first iterations."""
        return []

    @property
    def _text_class(self) -> type[StagedTextTrainer]:
        from trainers.text.staged import StagedTextTrainer

        found = self.trainer_class
        assert issubclass(found, StagedTextTrainer)  # else the arm is of another family
        return found
