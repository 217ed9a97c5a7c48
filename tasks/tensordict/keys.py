"""Which stages an arm of the tensor family consists of, in which order, and the key of each.

Plans and runs both go through :meth:`ArmKeys.stages`, so that what ``ratchet plan`` says is what
happens. Reads sources and parameters only: no data, no agents.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ratchet.parameters.curriculum import read_phases
from ratchet.parameters.reading import agents_read
from ratchet.plugins import paths_from
from ratchet.store.keys import stage_key
from tasks.stages.calls import TEST_DATASET, StageCall
from tasks.stages.keys import BaseKeys
from trainers.sampled_tests import dataset_of, test_names, tests_both_ways

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ratchet.parameters.curriculum import Phase
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.tracking.checkpoint_folders import SavedState
    from ratchet.tracking.manifest import ModelKind
    from tasks.stages.sequence import Course, Step
    from trainers.staged import StagedTrainer

STAGE_VERSIONS = {
    "build_scenario": 1,
    "initial_state": 1,
    "pretrain": 1,
    "pretrained_state": 1,
    "imitate": 1,
    "imitated_state": 1,
    "phase_state": 1,
    "rollouts": 2,
    "train": 1,
    "test": 1,
    "run_trainer": 1,
}
"""Raised when a task writes other files or calls its trainer otherwise: they are made anew."""
_READ_AS = {
    "pretrained_state": "initial_state",
    "imitated_state": "initial_state",
    "phase_state": "train",
    "rollouts": "train",
}
"""Stages that read parameters as another does."""


class ArmKeys(BaseKeys):
    """The stages of one arm that trains networks, or whose trainer can only be run as a whole."""

    stage_versions = STAGE_VERSIONS
    periods: tuple[int, ...] = ()
    """By what training is cut beside what the settings say."""
    tested_states: Mapping[int, SavedState] = MappingProxyType({})
    """What a trainer with a loop of its own has saved and is to be tested again, by iterations."""
    imitated_rollouts: Sequence[str] = ()
    """The keys of the stages whose rollouts agents imitate; none where models are hand-made."""

    def training(self, course: Course) -> Iterator[Step]:
        """Go through data, initial state, learning before the game, and training as it is cut.

        Before the first iteration of each phase comes the state that it begins with.
        """
        yield self.build_scenario()
        if not self.is_staged:
            if not self.only_tests:
                yield self.run_trainer()
            return
        if self.only_tests:
            return
        yield self.initial_state()
        for agent in self.pretrained_agents:
            yield self.pretrain(agent)
        if self.pretrained_agents:
            yield self.pretrained_state()
        for agent in self.imitating_agents:
            yield self.imitate(agent)
        if self.imitating_agents:
            yield self.imitated_state()
        position = 0
        for stop in course.stops(self):
            begun = self.phase_from(position)
            if begun is not None and begun.start == position:
                yield self.phase_state(begun)
            if self.samples_rollouts and course.samples_at(position, self.num_iterations):
                yield self.rollouts(position)
            yield self.train(position, stop)
            position = stop

    def tests(self, course: Course) -> Iterator[Step]:
        """Go through the tests on each dataset; an own loop has its own test, beside training."""
        for iteration in sorted(self.tested_states):
            yield self.test_loop(iteration)
        for iteration in self.tested_iterations if self.is_staged else ():
            for name in test_names(course.tested(self), both=self.tests_both_ways):
                yield self.test(name, iteration)

    @property
    def tests_both_ways(self) -> bool:
        """Whether there is a test by drawn actions beside each by the likeliest."""
        return self._staged_class.samples_tests() and tests_both_ways(self.hyper_params)

    @property
    def is_staged(self) -> bool:
        """Whether the trainer can be run piece by piece, rather than by ``train()`` alone."""
        from trainers.staged import StagedTrainer

        found = self.trainer_class
        return issubclass(found, StagedTrainer) and found.supports_stages()

    @property
    def model_kind(self) -> ModelKind | None:
        """What its final agents are to whoever loads them; None where nobody can."""
        return "networks" if self.is_staged else None

    @cached_property
    def num_iterations(self) -> int:
        """The number of the arm's training iterations."""
        with paths_from(self.base_path):
            return self._staged_class.count_train_iterations(self.hyper_params)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of training, each with its own parameters; none where there is but one."""
        if not self.hyper_params.phases:
            return ()
        return read_phases(self.hyper_params, tuple(self._handler.agent_names))

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The ends of phases, and the states from which earlier selves are drawn."""
        members = {
            iteration
            for phase in self.phases
            for iterations in (phase.pools or {}).values()
            for iteration in iterations
        }
        return tuple(sorted({*members, *(phase.stop for phase in self.phases)}))

    def phase_from(self, iteration: int) -> Phase | None:
        """Return the phase that does the iteration after so many; None without phases."""
        return next((phase for phase in self.phases if iteration < phase.stop), self._last_phase)

    def phase_before(self, iteration: int) -> Phase | None:
        """Return the phase that ends with the state after so many iterations, or has it within."""
        return next((phase for phase in self.phases if iteration <= phase.stop), self._last_phase)

    @property
    def _last_phase(self) -> Phase | None:
        return self.phases[-1] if self.phases else None

    @property
    def tested_iterations(self) -> list[int]:
        """The iterations after which agents are tested: the last, or those of all kept states."""
        if self.only_tests:
            return [0, *sorted(self.kept_states)]
        return [self.num_iterations]

    @property
    def needed_states(self) -> list[tuple[str, int]]:
        """The stages whose results are tested where nothing is trained, beside the kept states."""
        if self.imitating_agents:
            return [("imitated_state", 0)]
        return [("pretrained_state" if self.pretrained_agents else "initial_state", 0)]

    @property
    def final_state_key(self) -> str | None:
        """The key of the stage whose result is the state after all training; None without one."""
        if self.is_staged:
            return self.state_key(self.tested_iterations[-1])
        return None if self.only_tests else self.run_trainer().key

    @property
    def kept_states(self) -> dict[int, str]:
        """The states of an earlier run that are kept: iterations done → key; 0 left out."""
        return {iteration: key for (name, iteration), key in self.pins.items() if name == "train"}

    @property
    def samples_rollouts(self) -> bool:
        """Whether rollouts of single iterations can be kept."""
        return self.is_staged and self._staged_class.samples_rollouts()

    @cached_property
    def pretrained_agents(self) -> tuple[str, ...]:
        """The agents that are trained alone before the game begins."""
        if not self.is_staged:
            return ()
        return tuple(self._staged_class.pretrained_agent_names(self.hyper_params))

    def pretrain(self, agent: str) -> StageCall:
        """Return the stage that trains one agent alone, beginning with its first weights."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "initial_state": self.initial_state().key,
            "agent": agent,
        }
        return self._call("pretrain", inputs, self._code_fingerprint, detail=agent)

    def pretrained_state(self) -> StageCall:
        """Return the stage that puts what was pretrained into the initial state."""
        inputs: dict[str, str | int] = {"initial_state": self.initial_state().key}
        for agent in self.pretrained_agents:
            inputs[f"pretrained.{agent}"] = self.pretrain(agent).key
        return self._call("pretrained_state", inputs, self._code_fingerprint)

    @cached_property
    def imitating_agents(self) -> tuple[str, ...]:
        """The agents that learn from what others do before they are trained."""
        if not self.is_staged:
            return ()
        return tuple(self._staged_class.imitating_agent_names(self.hyper_params))

    def state_to_imitate_from(self) -> StageCall:
        """Return the stage whose state agents begin to imitate from, each of them."""
        return self.pretrained_state() if self.pretrained_agents else self.initial_state()

    def imitate(self, agent: str) -> StageCall:
        """Return the stage in which one agent learns what its model does."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.state_to_imitate_from().key,
            "agent": agent,
        }
        for place, key in enumerate(self.imitated_rollouts):
            inputs[f"rollouts.{place}"] = key
        return self._call("imitate", inputs, self._code_fingerprint, detail=agent)

    def imitated_state(self) -> StageCall:
        """Return the stage that puts what was learned by imitation into the state."""
        inputs: dict[str, str | int] = {"state": self.state_to_imitate_from().key}
        for agent in self.imitating_agents:
            inputs[f"imitated.{agent}"] = self.imitate(agent).key
        return self._call("imitated_state", inputs, self._code_fingerprint)

    def train(self, start: int, stop: int) -> StageCall:
        """Return the stage that does the iterations from ``start`` up to, not including, ``stop``.

        Its key depends on ``stop`` alone: the state after so many iterations is the same however
        they were cut.
        """
        inputs = self._train_inputs(*self._base(self.phase_before(stop)))
        call = self._call("train", inputs, self._code_fingerprint, iteration=stop)
        return replace(call, start_iteration=start)

    def state_key(self, iteration: int) -> str:
        """Return the key of the stage whose result is the state after so many iterations."""
        if iteration == 0:
            return self._first_state().key
        return self.train(0, iteration).key

    def beginning_key(self, iteration: int) -> str:
        """Return the key of the stage whose result an iteration begins with."""
        phase = self.phase_from(iteration)
        if phase is not None and phase.start == iteration:
            return self.phase_state(phase).key
        return self.state_key(iteration)

    def phase_state(self, phase: Phase) -> StageCall:
        """Return the stage that makes the state with which a phase begins."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.state_key(phase.start),
        }
        if phase.fresh:
            inputs["first"] = self.state_key(0)
        for agent, iterations in (phase.pools or {}).items():
            inputs |= {f"pool.{agent}.{each}": self.state_key(each) for each in iterations}
        return self._call(
            "phase_state",
            inputs,
            self._code_fingerprint,
            iteration=phase.start,
            detail=phase.name,
        )

    def rollouts(self, iteration: int) -> StageCall:
        """Return the stage that plays the rollouts of an iteration once more, to keep them."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.beginning_key(iteration),
        }
        return self._call("rollouts", inputs, self._code_fingerprint, iteration=iteration)

    def test(self, name: str = TEST_DATASET, iteration: int | None = None) -> StageCall:
        """Return the stage that tests a state, the final one by default; on a dataset, by its name.

        A test by drawn actions has a name of its own (:mod:`trainers.sampled_tests`).
        """
        done = self.tested_iterations[-1] if iteration is None else iteration
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.state_key(done),
            "dataset": dataset_of(name)[0],
        }
        return self._call("test", inputs, self._code_fingerprint, iteration=done, detail=name)

    def test_loop(self, iteration: int) -> StageCall:
        """Return the stage that runs an own loop's test with a state that it has saved."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.tested_states[iteration].digest,
        }
        return self._call(
            "test", inputs, self._code_fingerprint, iteration=iteration, detail="test"
        )

    def run_trainer(self) -> StageCall:
        """Return the one stage of a trainer that has only ``train()``."""
        inputs: dict[str, str | int] = {"data": self.build_scenario().key, **self._loaded}
        return self._call("run_trainer", inputs, self._code_fingerprint)

    def _base(self, phase: Phase | None) -> tuple[int, str]:
        """Where training starts to count, in a phase too: its first state, or one that is kept."""
        place = "" if phase is None else phase.name
        if place not in self._bases:
            self._bases[place] = self._find_base(phase)
        return self._bases[place]

    @cached_property
    def _bases(self) -> dict[str, tuple[int, str]]:
        return {}

    def _find_base(self, phase: Phase | None) -> tuple[int, str]:
        """Return the earliest state from which this code computes the last kept one's key.

        If there is none such, the last kept state itself.
        """
        start = 0 if phase is None else phase.start
        first = self._first_state() if phase is None else self.phase_state(phase)
        initial = (start, first.key)
        kept = sorted(
            (done, key)
            for done, key in self.kept_states.items()
            if self.phase_before(done) is phase
        )
        if not kept:
            return initial
        last, key = kept[-1]
        for base in (initial, *kept[:-1]):
            inputs = self._train_inputs(*base)
            parameters = self._parameters("train", last, "")
            code = self._with_callbacks(self._code_fingerprint, "train")
            if stage_key("train", last, parameters, inputs, code.digest) == key:
                return base
        return last, key

    def _first_state(self) -> StageCall:
        return self.imitated_state() if self.imitating_agents else self.state_to_imitate_from()

    def _train_inputs(self, base: int, base_key: str) -> dict[str, str | int]:
        return {
            "data": self.build_scenario().key,
            "base": base_key,
            "base_iteration": base,
        }

    def stage_parameters(self, stage: str, iteration: int, detail: str) -> dict[str, Any]:
        """Return the parameters that a stage reads, as plain data."""
        if not self.is_staged:
            data = self.hyper_params.to_dict() | {"agents": agents_read(self.hyper_params)}
            return {name: value for name, value in data.items() if name != "callbacks"}
        agent = detail if stage == "pretrain" else None
        phase = self._phase_of(stage, iteration)
        hyper_params = self._read_by(stage, detail) if phase is None else phase.hyper_params
        with paths_from(self.base_path):
            read = self._staged_class.stage_key_parameters(
                hyper_params, _READ_AS.get(stage, stage), agent
            )
        if phase is None or stage != "phase_state":
            return read
        return {**read, "replaced": sorted(phase.replaced), "fresh": sorted(phase.fresh)}

    def _phase_of(self, stage: str, iteration: int) -> Phase | None:
        """Return the phase that a stage belongs to, which it then reads the parameters of."""
        if stage in ("phase_state", "rollouts"):
            return self.phase_from(iteration)
        return self.phase_before(iteration) if stage == "train" else None

    def _read_by(self, stage: str, detail: str) -> HyperParameters:
        """Return the parameters as a stage reads them: each of both tests is one of a kind.

        So that asking for both keeps the test that there was.
        """
        if stage != "test" or not self.tests_both_ways:
            return self.hyper_params
        return self.hyper_params.replace({"rl.test_by_sampling": dataset_of(detail)[1]})

    def _ends_training(self, stage: str, iteration: int) -> bool:
        ends = {phase.stop for phase in self.phases} or {self.num_iterations}
        return stage == "train" and iteration in ends

    @property
    def _staged_class(self) -> type[StagedTrainer]:
        from trainers.staged import StagedTrainer

        found = self.trainer_class
        assert issubclass(found, StagedTrainer)  # asked only if is_staged
        return found
