"""``TrainedKeys``: keys of families whose training continues from a stored state.

Training may be split into stages anywhere: a key depends on the number of iterations, not on the
split, so that runs of different lengths share their stages.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from ratchet.plugins import paths_from
from ratchet.store.keys import stage_key
from tasks.stages.calls import TEST_DATASET, StageCall, Step
from tasks.stages.keys import BaseKeys, StageLayout
from trainers.sampled_tests import dataset_of, test_names, tests_both_ways

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratchet.parameters.curriculum import Phase
    from ratchet.parameters.hyper_parameters import HyperParameters
    from trainers.staged import StagedTrainer


class TrainedKeys(BaseKeys):
    """Training, its phases, states and tests of an arm whose trainer runs in stages."""

    periods: tuple[int, ...] = ()
    """Periods that end a stage of training, in addition to those of the settings."""
    is_staged: bool = True
    """Whether the trainer supports stages, not only ``train()``."""

    @cached_property
    def num_iterations(self) -> int:
        """The number of the arm's training iterations."""
        with paths_from(self.base_path):
            return self.staged_class.count_train_iterations(self.hyper_params)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The ends of phases, and the iterations of policy pools."""
        members = {
            iteration
            for phase in self.phases
            for iterations in (phase.pools or {}).values()
            for iteration in iterations
        }
        return tuple(sorted({*members, *(phase.stop for phase in self.phases)}))

    def begun_phase(self, iteration: int) -> Iterator[StageCall]:
        """Yield the initial state of a phase that starts with an iteration."""
        phase = self.phase_from(iteration)
        if phase is not None and phase.start == iteration:
            yield self.phase_state(phase)

    @property
    def tested_iterations(self) -> list[int]:
        """Iterations after which agents are tested: the last, or all states of a retest."""
        if self.only_tests:
            return [0, *sorted(self.pinned_states)]
        return [self.num_iterations]

    @property
    def needed_states(self) -> list[tuple[str, int]]:
        """The stages that a retest needs, in addition to the pinned states."""
        return [(self.untrained_state().stage, 0)]

    @property
    def final_state_key(self) -> str | None:
        """The key of the stage whose result is the state after all training; None without one."""
        return self.state_key(self.tested_iterations[-1])

    @property
    def pinned_states(self) -> dict[int, str]:
        """States of an earlier run that are reused: iteration → key, without iteration 0."""
        return {iteration: key for (name, iteration), key in self.pins.items() if name == "train"}

    @property
    def samples_rollouts(self) -> bool:
        """Whether rollouts of single iterations can be stored."""
        return self.is_staged and self.trainer_class.traits.samples_rollouts

    @property
    def tests_both_ways(self) -> bool:
        """Whether each greedy test is accompanied by one with sampled actions."""
        return self.trainer_class.traits.samples_tests and tests_both_ways(self.hyper_params)

    @abstractmethod
    def rollouts(self, iteration: int) -> StageCall:
        """Return the stage that stores the rollouts of an iteration."""

    def tests(self, layout: StageLayout) -> Iterator[Step]:
        """Iterate over the tests on each dataset."""
        for iteration in self.tested_iterations:
            for name in test_names(layout.tested(self), both=self.tests_both_ways):
                yield self.test(name, iteration)

    def untrained_state(self) -> StageCall:
        """Return the stage whose result is the state before the first training iteration."""
        return self.initial_state()

    def first_state(self, iteration: int) -> StageCall:
        """Return the stage from whose result training up to an iteration starts: of its phase."""
        phase = self.phase_before(iteration)
        return self.untrained_state() if phase is None else self.phase_state(phase)

    def train(self, start: int, stop: int) -> StageCall:
        """Return the stage that trains the iterations from ``start`` up to, excluding, ``stop``.

        Its key depends only on ``stop``, since the split of training does not affect the state.
        """
        phase = self.phase_before(stop)
        name = "" if phase is None else phase.name
        if name not in self._bases:
            self._bases[name] = self._find_base(self.first_state(stop), phase)
        inputs = self._train_inputs(*self._bases[name])
        call = self._call("train", inputs, iteration=stop)
        return replace(call, start_iteration=start)

    def state_key(self, iteration: int) -> str:
        """Return the key of the stage whose result is the state after this many iterations."""
        if iteration == 0:
            return self.untrained_state().key
        return self.train(0, iteration).key

    def beginning_key(self, iteration: int) -> str:
        """Return the key of the stage from whose result an iteration starts."""
        phase = self.phase_from(iteration)
        if phase is not None and phase.start == iteration:
            return self.phase_state(phase).key
        return self.state_key(iteration)

    def phase_state(self, phase: Phase) -> StageCall:
        """Return the stage that builds the initial state of a phase."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.state_key(phase.start),
            **self.pool_inputs(phase),
        }
        if phase.fresh:
            inputs["first"] = self.state_key(0)
        return self._call(
            "phase_state",
            inputs,
            iteration=phase.start,
            detail=phase.name,
        )

    def test(self, name: str = TEST_DATASET, iteration: int | None = None) -> StageCall:
        """Return the stage that tests a state, by default the final one, on a dataset.

        Tests with sampled actions have separate names (:mod:`trainers.sampled_tests`).
        """
        done = self.tested_iterations[-1] if iteration is None else iteration
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.state_key(done),
            "dataset": dataset_of(name)[0],
        }
        return self._call("test", inputs, iteration=done, detail=name)

    @cached_property
    def _bases(self) -> dict[str, tuple[int, str]]:
        return {}

    def _find_base(self, first: StageCall, phase: Phase | None) -> tuple[int, str]:
        """Return the earliest state from which this code computes the last pinned key.

        If none does, the last pinned state itself.
        """
        initial = (first.iteration, first.key)
        pinned = sorted(
            (done, key)
            for done, key in self.pinned_states.items()
            if self.phase_before(done) is phase
        )
        if not pinned:
            return initial
        last, key = pinned[-1]
        for base in (initial, *pinned[:-1]):
            inputs = self._train_inputs(*base)
            parameters = self._parameters("train", last, "")
            code = self.fingerprint("train", parameters).digest
            if stage_key("train", last, parameters, inputs, code) == key:
                return base
        return last, key

    def _train_inputs(self, base: int, base_key: str) -> dict[str, str | int]:
        return {
            "data": self.build_scenario().key,
            "base": base_key,
            "base_iteration": base,
        }

    def _tested_parameters(self, stage: str, detail: str) -> HyperParameters:
        """Return the parameters with ``rl.test_by_sampling`` of one test instead of "both".

        So a test that is stored already is reused when both are requested.
        """
        if stage != "test" or not self.tests_both_ways:
            return self.hyper_params
        return self.hyper_params.replace({"rl.test_by_sampling": dataset_of(detail)[1]})

    def _phase_of(self, stage: str, iteration: int) -> Phase | None:
        """Return the phase whose parameters a stage reads."""
        if stage in ("phase_state", "rollouts"):
            return self.phase_from(iteration)
        return self.phase_before(iteration) if stage == "train" else None

    def _ends_training(self, stage: str, iteration: int) -> bool:
        ends = {phase.stop for phase in self.phases} or {self.num_iterations}
        return stage == "train" and iteration in ends

    @property
    def staged_class(self) -> type[StagedTrainer]:
        """The class of the trainer."""
        from trainers.staged import StagedTrainer

        trainer = self.trainer_class
        assert issubclass(trainer, StagedTrainer)  # only used if is_staged
        return trainer
