"""Stages of an arm of the tensor family, their order and their keys.

Reads sources and parameters only: no data, no agents.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.parameters.curriculum import read_phases
from ratchet.parameters.key_inputs import agents_read
from ratchet.plugins import paths_from
from ratchet.store.keys import stage_key
from tasks.stages.calls import TEST_DATASET, StageCall, Step
from tasks.stages.keys import BaseKeys, StageLayout
from trainers.sampled_tests import dataset_of, test_names, tests_both_ways

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ratchet.parameters.curriculum import Phase
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.tracking.manifest import ModelKind
    from ratchet.tracking.trainer_files import SavedState
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
"""The stages and their versions: increased when a stage must be recomputed although its code has
the same fingerprint, e.g. if it writes different files."""
_READ_AS = {
    "pretrained_state": "initial_state",
    "imitated_state": "initial_state",
    "phase_state": "train",
    "rollouts": "train",
}
"""Stages that read the same parameters as another."""


class ArmKeys(BaseKeys):
    """Stages of an arm that trains networks, or whose trainer only has ``train()``."""

    stage_versions = STAGE_VERSIONS
    task_modules: ClassVar[tuple[str, ...]] = ("tasks.tensordict.stages", "tasks.build_scenario")
    session_code = ("tasks.tensordict.session", "ArmSession")
    periods: tuple[int, ...] = ()
    """Periods that end a stage of training, in addition to those of the settings."""
    tested_states: Mapping[int, SavedState] = MappingProxyType({})
    """States saved by a custom training loop, to be tested again, by iteration."""
    imitated_rollouts: Sequence[str] = ()
    """Keys of the stages whose rollouts agents imitate; none for scripted demonstrators."""

    def initial_stages(self) -> Iterator[Step]:
        """Iterate over the initial state, pretraining and imitation."""
        if not self.is_staged or self.only_tests:
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

    def iterations(self, layout: StageLayout) -> Iterator[Iterator[Step]]:
        """Iterate over training: the stages of each piece between two stops of the layout."""
        if self.only_tests:
            return
        if not self.is_staged:
            yield iter([self.run_trainer()])
            return
        position = 0
        for stop in layout.stops(self):
            yield self._iteration(position, stop, layout)
            position = stop

    def _iteration(self, start: int, stop: int, layout: StageLayout) -> Iterator[Step]:
        """Iterate over a phase's initial state, stored rollouts, and training."""
        phase = self.phase_from(start)
        if phase is not None and phase.start == start:
            yield self.phase_state(phase)
        if self.samples_rollouts and layout.samples_at(start, self.num_iterations):
            yield self.rollouts(start)
        yield self.train(start, stop)

    def tests(self, layout: StageLayout) -> Iterator[Step]:
        """Iterate over the tests on each dataset; custom loops have their own test."""
        for iteration in sorted(self.tested_states):
            yield self.test_loop(iteration)
        for iteration in self.tested_iterations if self.is_staged else ():
            for name in test_names(layout.tested(self), both=self.tests_both_ways):
                yield self.test(name, iteration)

    @property
    def tests_both_ways(self) -> bool:
        """Whether each greedy test is accompanied by one with sampled actions."""
        return self.trainer_class.traits.samples_tests and tests_both_ways(self.hyper_params)

    @property
    def is_staged(self) -> bool:
        """Whether the trainer supports stages, not only ``train()``."""
        from trainers.staged import runs_in_stages

        return runs_in_stages(self.trainer_class)

    @property
    def model_kind(self) -> ModelKind | None:
        """The kind of the final agents when loaded as a model; None if they can't be."""
        return "networks" if self.is_staged else None

    @cached_property
    def num_iterations(self) -> int:
        """The number of the arm's training iterations."""
        with paths_from(self.base_path):
            return self._staged_class.count_train_iterations(self.hyper_params)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of training with their parameters; empty without phases."""
        if not self.hyper_params.phases:
            return ()
        return read_phases(self.hyper_params, tuple(self._handler.agent_names))

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

    def phase_from(self, iteration: int) -> Phase | None:
        """Return the phase of the iteration that starts at this state; None without phases."""
        return next((phase for phase in self.phases if iteration < phase.stop), self._last_phase)

    def phase_before(self, iteration: int) -> Phase | None:
        """Return the phase that contains or ends with this state; None without phases."""
        return next((phase for phase in self.phases if iteration <= phase.stop), self._last_phase)

    @property
    def _last_phase(self) -> Phase | None:
        return self.phases[-1] if self.phases else None

    @property
    def tested_iterations(self) -> list[int]:
        """Iterations after which agents are tested: the last, or all states of a retest."""
        if self.only_tests:
            return [0, *sorted(self.pinned_states)]
        return [self.num_iterations]

    @property
    def needed_states(self) -> list[tuple[str, int]]:
        """The stages that a retest needs, in addition to the pinned states."""
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
    def pinned_states(self) -> dict[int, str]:
        """States of an earlier run that are reused: iteration → key, without iteration 0."""
        return {iteration: key for (name, iteration), key in self.pins.items() if name == "train"}

    @property
    def samples_rollouts(self) -> bool:
        """Whether rollouts of single iterations can be stored."""
        return self.is_staged and self.trainer_class.traits.samples_rollouts

    @cached_property
    def pretrained_agents(self) -> tuple[str, ...]:
        """The agents that are pretrained individually."""
        if not self.is_staged:
            return ()
        return tuple(self._staged_class.pretrained_agent_names(self.hyper_params))

    def pretrain(self, agent: str) -> StageCall:
        """Return the stage that pretrains one agent from its initial weights."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "initial_state": self.initial_state().key,
            "agent": agent,
        }
        return self._call("pretrain", inputs, detail=agent)

    def pretrained_state(self) -> StageCall:
        """Return the stage that loads the pretrained weights into the initial state."""
        inputs: dict[str, str | int] = {"initial_state": self.initial_state().key}
        for agent in self.pretrained_agents:
            inputs[f"pretrained.{agent}"] = self.pretrain(agent).key
        return self._call("pretrained_state", inputs)

    @cached_property
    def imitating_agents(self) -> tuple[str, ...]:
        """The agents that learn from demonstrations before they are trained."""
        supported = self.is_staged and self.trainer_class.traits.supports_imitation
        return tuple(self.hyper_params.imitation.agents) if supported else ()

    def state_to_imitate_from(self) -> StageCall:
        """Return the stage from whose state every agent starts to imitate."""
        return self.pretrained_state() if self.pretrained_agents else self.initial_state()

    def imitate(self, agent: str) -> StageCall:
        """Return the stage in which one agent learns from demonstrations."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.state_to_imitate_from().key,
            "agent": agent,
        }
        for number, key in enumerate(self.imitated_rollouts):
            inputs[f"rollouts.{number}"] = key
        return self._call("imitate", inputs, detail=agent)

    def imitated_state(self) -> StageCall:
        """Return the stage that loads the weights learned by imitation into the state."""
        inputs: dict[str, str | int] = {"state": self.state_to_imitate_from().key}
        for agent in self.imitating_agents:
            inputs[f"imitated.{agent}"] = self.imitate(agent).key
        return self._call("imitated_state", inputs)

    def train(self, start: int, stop: int) -> StageCall:
        """Return the stage that trains the iterations from ``start`` up to, excluding, ``stop``.

        Its key depends only on ``stop``, since the split of training does not affect the state.
        """
        inputs = self._train_inputs(*self._base(self.phase_before(stop)))
        call = self._call("train", inputs, iteration=stop)
        return replace(call, start_iteration=start)

    def state_key(self, iteration: int) -> str:
        """Return the key of the stage whose result is the state after this many iterations."""
        if iteration == 0:
            return self._first_state().key
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
        }
        if phase.fresh:
            inputs["first"] = self.state_key(0)
        for agent, iterations in (phase.pools or {}).items():
            inputs |= {f"pool.{agent}.{each}": self.state_key(each) for each in iterations}
        return self._call(
            "phase_state",
            inputs,
            iteration=phase.start,
            detail=phase.name,
        )

    def rollouts(self, iteration: int) -> StageCall:
        """Return the stage that collects the rollouts of an iteration again, to store them."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.beginning_key(iteration),
        }
        return self._call("rollouts", inputs, iteration=iteration)

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

    def test_loop(self, iteration: int) -> StageCall:
        """Return the stage that runs a custom loop's test with a state that it saved."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.tested_states[iteration].digest,
        }
        return self._call("test", inputs, iteration=iteration, detail="test")

    def run_trainer(self) -> StageCall:
        """Return the one stage of a trainer that has only ``train()``."""
        inputs: dict[str, str | int] = {"data": self.build_scenario().key, **self._loaded}
        return self._call("run_trainer", inputs)

    def _base(self, phase: Phase | None) -> tuple[int, str]:
        """Return the state from which keys count training: a phase's first, or a pinned one."""
        name = "" if phase is None else phase.name
        if name not in self._bases:
            self._bases[name] = self._find_base(phase)
        return self._bases[name]

    @cached_property
    def _bases(self) -> dict[str, tuple[int, str]]:
        return {}

    def _find_base(self, phase: Phase | None) -> tuple[int, str]:
        """Return the earliest state from which this code computes the last pinned key.

        If none does, the last pinned state itself.
        """
        start = 0 if phase is None else phase.start
        first = self._first_state() if phase is None else self.phase_state(phase)
        initial = (start, first.key)
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
        hyper_params = (
            self._tested_parameters(stage, detail) if phase is None else phase.hyper_params
        )
        with paths_from(self.base_path):
            read = self._staged_class.stage_key_parameters(
                hyper_params, _READ_AS.get(stage, stage), agent
            )
        if phase is None or stage != "phase_state":
            return read
        return {**read, "replaced": sorted(phase.replaced), "fresh": sorted(phase.fresh)}

    def _phase_of(self, stage: str, iteration: int) -> Phase | None:
        """Return the phase whose parameters a stage reads."""
        if stage in ("phase_state", "rollouts"):
            return self.phase_from(iteration)
        return self.phase_before(iteration) if stage == "train" else None

    def _tested_parameters(self, stage: str, detail: str) -> HyperParameters:
        """Return the parameters with ``rl.test_by_sampling`` of one test instead of "both".

        So a test that is stored already is reused when both are requested.
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

        trainer = self.trainer_class
        assert issubclass(trainer, StagedTrainer)  # only used if is_staged
        return trainer
