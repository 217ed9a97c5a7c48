"""Which stages an arm consists of, and the key of each.

Plans and runs both ask here, so that what ``ratchet plan`` says is what happens. Reads sources
and parameters only: no data, no agents.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import UnknownNameError, nearest
from ratchet.store.fingerprint import Fingerprint, code_fingerprint
from ratchet.store.keys import stage_key
from tasks.calls import TEST_DATASET, StageCall
from tasks.key_parameters import data_parameters, without_path
from tasks.pins import Pins

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.registry import Scenario
    from ratchet.store.manifest import Manifest
    from trainers.base import Trainer
    from trainers.staged import StagedTrainer

STAGE_VERSIONS = {
    "build_scenario": 1,
    "initial_state": 1,
    "pretrain": 1,
    "pretrained_state": 1,
    "train": 1,
    "test": 1,
    "whole": 1,
}
"""Raised when a task writes other files or calls its trainer otherwise: they are made anew."""


class ArmKeys:
    """The stages of one arm.

    Parameters
    ----------
    arm
        Its name.
    hyper_params
        What it is made of.
    base_dir
        The folder that paths to plug-ins start from.
    pins
        Stages of an earlier run to keep.
    """

    def __init__(
        self,
        arm: str,
        hyper_params: HyperParameters,
        *,
        base_dir: str | None = None,
        pins: Pins | None = None,
    ) -> None:
        self.arm = arm
        self.hyper_params = hyper_params
        self.base_dir = base_dir
        self.base_path = None if base_dir is None else Path(base_dir)
        self.pins = pins or Pins()
        self._calls: dict[tuple[str, int, str], StageCall] = {}

    @cached_property
    def trainer_class(self) -> type[Trainer]:
        """The class of the trainer, found by name, file or entry point."""
        from trainers.registry import trainer_class

        return trainer_class(self.hyper_params, self.base_dir)

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario, which builds datasets, environments and agents."""
        from ratchet.scenarios.registry import build_scenario

        return build_scenario(self.hyper_params.scenario)

    @property
    def is_staged(self) -> bool:
        """Whether the trainer can be run piece by piece, rather than by ``train()`` alone."""
        from trainers.staged import StagedTrainer

        found = self.trainer_class
        return issubclass(found, StagedTrainer) and found.supports_stages()

    @property
    def num_iterations(self) -> int:
        """How many training iterations the arm has."""
        return self._staged_class.count_train_iterations(self.hyper_params)

    @cached_property
    def pretrained_agents(self) -> tuple[str, ...]:
        """The agents that are trained alone before the game begins."""
        if not self.is_staged:
            return ()
        return tuple(self._staged_class.pretrained_agent_names(self.hyper_params))

    def build_scenario(self) -> StageCall:
        """Give the stage that makes the datasets."""
        return self._call("build_scenario", {}, self._data_fingerprint)

    def initial_state(self) -> StageCall:
        """Give the stage that draws the first weights."""
        inputs: dict[str, str | int] = {"data": self.build_scenario().key}
        return self._call("initial_state", inputs, self._code_fingerprint)

    def pretrain(self, agent: str) -> StageCall:
        """Give the stage that trains one agent alone, beginning with its first weights."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "initial_state": self.initial_state().key,
            "agent": agent,
        }
        return self._call("pretrain", inputs, self._code_fingerprint, detail=agent)

    def pretrained_state(self) -> StageCall:
        """Give the stage that puts what was pretrained into the initial state."""
        inputs: dict[str, str | int] = {"initial_state": self.initial_state().key}
        for agent in self.pretrained_agents:
            inputs[f"pretrained.{agent}"] = self.pretrain(agent).key
        return self._call("pretrained_state", inputs, self._code_fingerprint)

    def train(self, start: int, stop: int) -> StageCall:
        """Give the stage that does the iterations from ``start`` up to, not including, ``stop``.

        Its key depends on ``stop`` alone: the state after so many iterations is the same however
        they were cut.
        """
        inputs = self._train_inputs(*self._base)
        call = self._call("train", inputs, self._code_fingerprint, iteration=stop)
        return replace(call, start_iteration=start)

    def state_key(self, iteration: int) -> str:
        """Give the key of the stage whose result is the state after so many iterations."""
        if iteration == 0:
            return self._first_state().key
        return self.train(0, iteration).key

    def test(self, dataset: str = TEST_DATASET) -> StageCall:
        """Give the stage that tests the final state on a dataset."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.state_key(self.num_iterations),
            "dataset": dataset,
        }
        return self._call(
            "test", inputs, self._code_fingerprint, iteration=self.num_iterations, detail=dataset
        )

    def whole(self) -> StageCall:
        """Give the one stage of a trainer that has only ``train()``."""
        inputs: dict[str, str | int] = {"data": self.build_scenario().key}
        return self._call("whole", inputs, self._code_fingerprint)

    def by_name(self, name: str) -> StageCall:
        """Give a stage by its name in run folders; no training stage.

        Raises
        ------
        UnknownNameError
            If an arm has no stage of that name.
        """
        kind, _, detail = name.partition("-")
        if kind == "pretrain":
            return self.pretrain(detail)
        if kind == "test":
            return self.test(detail or TEST_DATASET)
        plain = {
            "build_scenario": self.build_scenario,
            "initial_state": self.initial_state,
            "pretrained_state": self.pretrained_state,
            "whole": self.whole,
        }
        if name not in plain:
            raise UnknownNameError(f"stage: unknown {name!r}.{nearest(name, plain)}")
        return plain[name]()

    def has(self, name: str, iteration: int, key: str) -> bool:
        """Say whether a stage that was recorded under this key is one of the arm's."""
        if name == "train":
            return self.is_staged and self.state_key(iteration) == key
        try:
            call = self.by_name(name)
        except UnknownNameError:
            return False
        return call.key == key and call.iteration == iteration

    def code_changes(self, manifest: Manifest) -> list[str]:
        """Say which modules differ from those that a stored stage was made with."""
        is_data = manifest.stage == "build_scenario"
        current = self._data_fingerprint if is_data else self._code_fingerprint
        return current.difference(manifest.fingerprint)

    @cached_property
    def _base(self) -> tuple[int, str]:
        """Where training starts to count: the initial state, or a state that is kept.

        The earliest from which this code computes the key that the last kept state has; if there
        is none, the last kept state itself.
        """
        initial = (0, self._first_state().key)
        kept = sorted(self.pins.states.items())
        if not kept:
            return initial
        last, key = kept[-1]
        for base in (initial, *kept[:-1]):
            inputs = self._train_inputs(*base)
            parameters = self._parameters("train")
            if stage_key("train", last, parameters, inputs, self._code_fingerprint.digest) == key:
                return base
        return last, key

    def _first_state(self) -> StageCall:
        return self.pretrained_state() if self.pretrained_agents else self.initial_state()

    def _train_inputs(self, base: int, base_key: str) -> dict[str, str | int]:
        return {
            "data": self.build_scenario().key,
            "base": base_key,
            "base_iteration": base,
        }

    def _call(
        self,
        stage: str,
        inputs: dict[str, str | int],
        fingerprint: Fingerprint,
        *,
        iteration: int = 0,
        detail: str = "",
    ) -> StageCall:
        place = (stage, iteration, detail)
        if place not in self._calls:
            call = StageCall(
                arm=self.arm,
                stage=stage,
                parameters=self._parameters(stage, detail),
                inputs=inputs,
                fingerprint=fingerprint,
                iteration=iteration,
                detail=detail,
            )
            pinned = self.pins.find(call.name, iteration)
            self._calls[place] = replace(call, pinned_key=pinned)
        return self._calls[place]

    def _parameters(self, stage: str, detail: str = "") -> dict[str, Any]:
        if stage == "build_scenario":
            parameters = data_parameters(self.hyper_params)
        elif stage == "whole":
            parameters = self.hyper_params.to_dict()
        else:
            agent = detail if stage == "pretrain" else None
            read_as = "initial_state" if stage == "pretrained_state" else stage
            parameters = self._staged_class.stage_key_parameters(self.hyper_params, read_as, agent)
        parameters = {name: without_path(value) for name, value in parameters.items()}
        return {**parameters, "stage_version": STAGE_VERSIONS[stage]}

    @property
    def _staged_class(self) -> type[StagedTrainer]:
        from trainers.staged import StagedTrainer

        found = self.trainer_class
        assert issubclass(found, StagedTrainer)  # asked only if is_staged
        return found

    @cached_property
    def _data_fingerprint(self) -> Fingerprint:
        return code_fingerprint(*self.scenario.data_code())

    @cached_property
    def _code_fingerprint(self) -> Fingerprint:
        from ratchet.protocols.registry import build_protocol_handler

        protocol = type(build_protocol_handler(self.hyper_params, base_dir=self.base_path))
        return code_fingerprint(self.trainer_class, type(self.scenario), protocol)
