"""Stages of an arm of the tensor family, their order and their keys.

Reads sources and parameters only: no data, no agents.
"""

from __future__ import annotations

from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.parameters.key_inputs import agents_read
from ratchet.plugins import paths_from
from ratchet.tracking.stage_kinds import (
    BUILD_SCENARIO,
    IMITATE,
    IMITATED_STATE,
    INITIAL_STATE,
    PHASE_STATE,
    PRETRAIN,
    PRETRAINED_STATE,
    ROLLOUTS,
    RUN_TRAINER,
    TEST,
    TRAIN,
    StageKind,
)
from tasks.stages.calls import StageCall, Step
from tasks.stages.keys import StageLayout
from tasks.stages.trained_keys import TrainedKeys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ratchet.tracking.manifest import ModelKind
    from ratchet.tracking.trainer_files import SavedState

NETWORK_KINDS = (
    *(BUILD_SCENARIO, INITIAL_STATE, PRETRAIN, PRETRAINED_STATE, IMITATE, IMITATED_STATE),
    *(PHASE_STATE, ROLLOUTS, TRAIN, TEST, RUN_TRAINER),
)


class ArmKeys(TrainedKeys):
    """Stages of an arm that trains networks, or whose trainer only has ``train()``."""

    family_kinds: ClassVar[tuple[StageKind, ...]] = NETWORK_KINDS
    task_modules: ClassVar[tuple[str, ...]] = ("tasks.tensordict.stages", "tasks.build_scenario")
    session_code = ("tasks.tensordict.session", "ArmSession")
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
        yield from self.begun_phase(start)
        if self.samples_rollouts and layout.samples_at(start, self.num_iterations):
            yield self.rollouts(start)
        yield self.train(start, stop)

    def tests(self, layout: StageLayout) -> Iterator[Step]:
        """Iterate over the tests on each dataset; custom loops have their own test."""
        for iteration in sorted(self.tested_states):
            yield self.test_loop(iteration)
        if self.is_staged:
            yield from super().tests(layout)

    @cached_property
    def is_staged(self) -> bool:  # type: ignore[override]
        """Whether the trainer supports stages, not only ``train()``."""
        from trainers.staged import runs_in_stages

        return runs_in_stages(self.trainer_class)

    @property
    def model_kind(self) -> ModelKind | None:
        """The kind of the final agents when loaded as a model; None if they can't be."""
        return "networks" if self.is_staged else None

    @cached_property
    def pretrained_agents(self) -> tuple[str, ...]:
        """The agents that are pretrained individually."""
        if not self.is_staged:
            return ()
        return tuple(self.staged_class.pretrained_agent_names(self.hyper_params))

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

    def untrained_state(self) -> StageCall:
        """Return the stage whose result is the state before the first training iteration."""
        return self.imitated_state() if self.imitating_agents else self.state_to_imitate_from()

    @property
    def final_state_key(self) -> str | None:
        """The key of the stage whose result is the state after all training; None without one."""
        if self.is_staged:
            return super().final_state_key
        return None if self.only_tests else self.run_trainer().key

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

    def rollouts(self, iteration: int) -> StageCall:
        """Return the stage that collects the rollouts of an iteration again, to store them."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.beginning_key(iteration),
        }
        return self._call("rollouts", inputs, iteration=iteration)

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
            read = self.staged_class.stage_key_parameters(
                hyper_params, self.kinds[stage].reads_as or stage, agent
            )
        if phase is None or stage != "phase_state":
            return read
        return {**read, "replaced": sorted(phase.replaced), "fresh": sorted(phase.fresh)}
