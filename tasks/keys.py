"""Which stages an arm of the tensor family consists of, and the key of each.

Plans and runs both ask here, so that what ``ratchet plan`` says is what happens. Reads sources
and parameters only: no data, no agents.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ratchet.errors import UnknownNameError, nearest
from ratchet.store.keys import stage_key
from tasks.base_keys import BaseKeys
from tasks.calls import TEST_DATASET, StageCall

if TYPE_CHECKING:
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


class ArmKeys(BaseKeys):
    """The stages of one arm that trains networks, or whose trainer can only be run as a whole."""

    stage_versions = STAGE_VERSIONS

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
            parameters = self._parameters("train", last, "")
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

    def stage_parameters(self, stage: str, iteration: int, detail: str) -> dict[str, Any]:
        """Give the parameters that a stage reads, as plain data."""
        if stage == "whole":
            return self.hyper_params.to_dict()
        agent = detail if stage == "pretrain" else None
        read_as = "initial_state" if stage == "pretrained_state" else stage
        return self._staged_class.stage_key_parameters(self.hyper_params, read_as, agent)

    @property
    def _staged_class(self) -> type[StagedTrainer]:
        from trainers.staged import StagedTrainer

        found = self.trainer_class
        assert issubclass(found, StagedTrainer)  # asked only if is_staged
        return found
