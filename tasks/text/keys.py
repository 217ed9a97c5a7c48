"""Stages of an arm of chat models, their order and their keys.

Reads sources and parameters only: no data, no agents.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from ratchet.tracking.stage_kinds import BUILD_SCENARIO, CHAT_ITERATION, INITIAL_STATE, TEST
from tasks.stages.calls import TEST_DATASET, StageCall, Step
from tasks.stages.keys import BaseKeys, StageLayout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ratchet.tracking.manifest import ModelKind
    from trainers.text.base import PureTextRlTrainer
    from trainers.text.state import TrainLoopStage

CHAT_KINDS = (BUILD_SCENARIO, INITIAL_STATE, *CHAT_ITERATION, TEST)
_OF_PHASES = {"sample_rollouts", "log_stats", "create_fine_tune_jobs", "await_fine_tune_jobs"}
"""Stages that read the parameters of their phase; tests read the experiment's."""
_SAMPLING = ("sample_rollouts", "test_during_training", "test")
_LEARNING = {
    "_stage_create_fine_tune_jobs",
    "await_fine_tune_jobs",
    "check_parameters",
    "create_fine_tune_jobs",
    "declares_sample_count",
    "examples_per_rollout",
    "job_stats",
    "responses_per_step",
    "says_what_it_samples",
    "stage_key_parameters",
    "stage_purposes",
    "train",
}
"""Methods that a trainer may override without changing how its agents act."""
_OF_EVERY_CLASS = {
    "__abstractmethods__",
    "__annotations__",
    "__dict__",
    "__doc__",
    "__module__",
    "__parameters__",
    "__weakref__",
    "_abc_impl",
}


class TextArmKeys(BaseKeys):
    """Stages of an arm of chat models.

    The state at the start of iteration i comes from ``await_fine_tune_jobs`` of iteration
    i − 1, that of iteration 0 from ``initial_state``. The last iteration of the last phase has no
    jobs.
    """

    family_kinds = CHAT_KINDS
    task_modules = ("tasks.text.stages", "tasks.build_scenario")
    session_code = ("tasks.text.session", "TextArmSession")
    excluded_code = (("trainers.text.base", "PureTextRlTrainer.train"),)
    model_kind: ModelKind = "chat_models"
    """The kind of the final agents when loaded as a model."""

    @property
    def num_iterations(self) -> int:
        """The number of the arm's iterations."""
        return int(self.text_class.count_train_iterations(self.hyper_params))

    def initial_stages(self) -> Iterator[Step]:
        """Iterate over the initial state only; empty in a retest."""
        if not self.only_tests:
            yield self.initial_state()

    def iterations(self, layout: StageLayout) -> Iterator[Iterator[Step]]:
        """Iterate over training: the stages of each iteration."""
        for iteration in range(self.num_iterations):
            yield self._iteration(iteration)

    def _iteration(self, iteration: int) -> Iterator[Step]:
        """Iterate over sampling, then statistics, test and fine-tuning concurrently.

        A retest only tests the states.
        """
        parallel: list[Iterator[StageCall]] = []
        stages = self.iteration_stages(iteration)
        if not self.only_tests:
            yield self.sample_rollouts(iteration)
            if self.is_steered:  # the other stages depend on it
                yield self.log_stats(iteration)
            else:
                parallel.append(iter([self.log_stats(iteration)]))
        if "test_during_training" in stages:
            parallel.append(iter([self.test_during_training(iteration)]))
        if "create_fine_tune_jobs" in stages and not self.only_tests:
            parallel.append(self._fine_tuning(iteration))
        yield tuple(parallel)

    def _fine_tuning(self, iteration: int) -> Iterator[StageCall]:
        yield self.create_fine_tune_jobs(iteration)
        yield self.await_fine_tune_jobs(iteration)

    def tests(self, layout: StageLayout) -> Iterator[Step]:
        """Iterate over the tests of the final state on each dataset."""
        for dataset in layout.tested(self):
            yield self.test(dataset)

    def sample_rollouts(self, iteration: int) -> StageCall:
        """Return the stage that samples the rollouts of an iteration."""
        phase = self.phase_from(iteration)
        pools = {} if phase is None else self.pool_inputs(phase)
        return self._sampling("sample_rollouts", iteration, self.state_key(iteration), pools)

    def log_stats(self, iteration: int) -> StageCall:
        """Return the stage that computes the statistics of an iteration's rollouts."""
        inputs: dict[str, str | int] = {"rollouts": self.sample_rollouts(iteration).key}
        if self.has_callbacks and iteration > 0:
            inputs["callbacks"] = self.log_stats(iteration - 1).key
        return self._in_iteration("log_stats", iteration, inputs)

    def test_during_training(self, iteration: int) -> StageCall:
        """Return the stage that tests the state at the start of an iteration."""
        return self._sampling("test_during_training", iteration, self.state_key(iteration))

    def create_fine_tune_jobs(self, iteration: int) -> StageCall:
        """Return the stage that requests fine-tuning on an iteration's rollouts."""
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
        inputs = {"dataset": dataset}
        return self._sampling("test", self.num_iterations, self.final_state_key, inputs, dataset)

    def state_key(self, iteration: int) -> str:
        """Return the key of the stage whose result is the state at an iteration's start."""
        keys = self._state_keys
        for done in range(max(keys), iteration):  # a loop, since recursion could be too deep
            keys[done + 1] = self.await_fine_tune_jobs(done).key
        return keys[iteration]

    @property
    def final_state_key(self) -> str:
        """The key of the stage whose result is the state after all training."""
        if self.is_steered and self.num_iterations > 0 and not self.only_tests:
            return self.log_stats(self.num_iterations - 1).key
        return self.state_key(max(self.num_iterations - 1, 0))

    @property
    def needed_states(self) -> list[tuple[str, int]]:
        """The stages whose results a retest tests."""
        jobs = range(self.num_iterations - 1)
        return [("initial_state", 0), *(("await_fine_tune_jobs", done) for done in jobs)]

    def earlier_rollouts(self, iteration: int) -> list[StageCall]:
        """Return the earlier stages whose rollouts an iteration also trains on, oldest first.

        Those of its phase.
        """
        if not self.parameters_in(iteration).text_rl.fine_tune_on_all_previous_rollouts:
            return []
        phase = self.phase_from(iteration)
        first = 0 if phase is None else phase.start
        return [self.sample_rollouts(earlier) for earlier in range(first, iteration)]

    def iteration_stages(self, iteration: int) -> list[TrainLoopStage]:
        """Return the names of an iteration's stages."""
        return self.text_class.iteration_stages(self.hyper_params, iteration)

    @property
    def has_callbacks(self) -> bool:
        """Whether callbacks observe iterations, in the stage of the statistics."""
        return any(spec.takes_part("log_stats") for spec in self.callbacks)

    @property
    def is_steered(self) -> bool:
        """Whether callbacks may stop the run, so that fine-tuning waits for them."""
        return any(spec.kind.steers for spec in self.callbacks)

    def tested_before(self, dataset: str) -> StageCall | None:
        """Return the stage during training that tests the final state, if any.

        It uses the same datapoints and seeds.
        """
        last = self.num_iterations - 1
        if dataset != TEST_DATASET or any(spec.may_change_tests for spec in self.callbacks):
            return None
        is_tested = last >= 0 and "test_during_training" in self.iteration_stages(last)
        return self.test_during_training(last) if is_tested else None

    def stage_parameters(self, stage: str, iteration: int, detail: str) -> dict[str, Any]:
        """Return the parameters that a stage reads, as plain data."""
        phase = self.phase_from(iteration) if stage in _OF_PHASES else None
        hyper_params = self.hyper_params if phase is None else phase.hyper_params
        read = self.text_class.stage_key_parameters(hyper_params, stage, iteration)
        if phase is not None and phase.fresh and iteration == phase.start:
            read["fresh"] = sorted(phase.fresh)
        return read

    def _ends_training(self, stage: str, iteration: int) -> bool:
        ends = {phase.stop for phase in self.phases} or {self.num_iterations}
        return stage == "log_stats" and iteration + 1 in ends

    def _sampling(
        self,
        stage: str,
        iteration: int,
        state: str,
        further: Mapping[str, str] | None = None,
        detail: str = "",
    ) -> StageCall:
        """Return a stage that samples from the models of a state, with further inputs."""
        inputs = {"data": self.build_scenario().key, "state": state, **(further or {})}
        return self._in_iteration(stage, iteration, inputs, detail)

    def _in_iteration(
        self, stage: str, iteration: int, inputs: Mapping[str, str | int], detail: str = ""
    ) -> StageCall:
        return self._call(stage, dict(inputs), iteration=iteration, detail=detail)

    def _trainer_of(self, stage: str) -> type:
        """Return the class that samples, without a subclass that only changes the training data.

        So an edit of such a class does not recompute rollouts, which cost money.
        """
        return rollout_class(self.trainer_class) if stage in _SAMPLING else self.trainer_class

    @cached_property
    def _state_keys(self) -> dict[int, str]:
        """Keys of the states at the start of the first iterations."""
        return {0: self.initial_state().key}

    @property
    def text_class(self) -> type[PureTextRlTrainer]:
        """The class of the trainer."""
        from trainers.text.base import PureTextRlTrainer

        trainer = self.trainer_class
        assert issubclass(trainer, PureTextRlTrainer)  # otherwise the family is another one
        return trainer


def rollout_class(trainer: type) -> type:
    """Return the first of a class and its bases that decides how agents act.

    A class that only overrides methods about learning does not: its other methods are not called
    during rollouts. So an edit of how it learns does not change the keys of rollouts.
    """
    from trainers.text.base import PureTextRlTrainer

    order = trainer.__mro__[:-1]
    for index, candidate in enumerate(order):
        inherited = {name for base in order[index + 1 :] for name in vars(base)}
        overridden = inherited.intersection(vars(candidate)) - _LEARNING - _OF_EVERY_CLASS
        if overridden or candidate is PureTextRlTrainer:
            inherits_the_rest = set(candidate.__mro__[:-1]) == set(order[index:])
            return candidate if inherits_the_rest else trainer
    return trainer
