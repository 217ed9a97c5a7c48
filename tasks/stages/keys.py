"""``BaseKeys``: what the keys of every family of arms have in common.

Reads sources and parameters only: no data, no agents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.parameters.reading import data_parameters, without_paths
from ratchet.store.fingerprint import Fingerprint, code_fingerprint
from tasks.stages.calls import StageCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.base import Scenario
    from ratchet.store.manifest import Manifest
    from tasks.stages.sequence import Course, Step
    from trainers.base import Trainer
    from trainers.callbacks.registry import CallbackSpec


class BaseKeys(ABC):
    """The stages of one arm, in their order.

    Paths to plug-ins start from ``base_dir``. ``checkpoints`` are digests of the states of earlier
    runs that agents begin with, by agent. ``pins`` are stages of an earlier run that are kept
    although their keys may no longer be computed: name and iteration → key; those of states are
    given before any stage is asked for.
    """

    stage_versions: ClassVar[dict[str, int]]
    """Raised when a task writes other files or calls its trainer otherwise: they are made anew."""

    def __init__(
        self,
        arm: str,
        hyper_params: HyperParameters,
        *,
        base_dir: str | None = None,
        pins: Mapping[tuple[str, int], str] | None = None,
        checkpoints: Mapping[str, str] | None = None,
    ) -> None:
        self.arm = arm
        self.hyper_params = hyper_params
        self.base_dir = base_dir
        self.base_path = None if base_dir is None else Path(base_dir)
        self.pins = dict(pins or {})
        self.checkpoints = dict(checkpoints or {})
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

        return build_scenario(self.hyper_params.scenario, self.base_path)

    @cached_property
    def callbacks(self) -> tuple[CallbackSpec, ...]:
        """What the experiment has done at the moments of training."""
        from trainers.callbacks.registry import callback_specs

        return callback_specs(self.hyper_params, self.base_dir)

    @property
    @abstractmethod
    def num_iterations(self) -> int:
        """The number of the arm's training iterations."""

    @property
    def only_tests(self) -> bool:
        """Whether the arm trains nothing, but tests the states of an earlier run again."""
        return bool(self.hyper_params.base_run.base_run_type == "rerun_tests")

    @property
    @abstractmethod
    def needed_states(self) -> list[tuple[str, int]]:
        """The stages whose results are tested where nothing is trained: name and iteration."""

    @property
    @abstractmethod
    def final_state_key(self) -> str | None:
        """The key of the stage whose result is the state after all training; None without one."""

    def stages(self, course: Course) -> Iterator[Step]:
        """Go through all stages in the order in which they are worked."""
        yield from self.training(course)
        yield from self.tests(course)

    @abstractmethod
    def training(self, course: Course) -> Iterator[Step]:
        """Go through the stages up to the final state."""

    @abstractmethod
    def tests(self, course: Course) -> Iterator[Step]:
        """Go through the tests of the final state, or of all where nothing is trained."""

    @abstractmethod
    def stage_parameters(self, stage: str, iteration: int, detail: str) -> dict[str, Any]:
        """Return the parameters that a stage of the trainer's reads, as plain data."""

    def pin(self, call: StageCall, key: str) -> None:
        """Keep a stored stage for a call, before any is asked for that takes in its result."""
        self.pins[call.name, call.iteration] = key
        self._calls[call.stage, call.iteration, call.detail] = replace(call, pinned_key=key)

    def build_scenario(self) -> StageCall:
        """Return the stage that makes the datasets."""
        return self._call("build_scenario", {}, self._data_fingerprint)

    def initial_state(self) -> StageCall:
        """Return the stage that makes the state before any training."""
        inputs: dict[str, str | int] = {"data": self.build_scenario().key, **self._loaded}
        return self._call("initial_state", inputs, self._code_fingerprint)

    def code_changes(self, manifest: Manifest | StageCall) -> list[str]:
        """Return which modules differ from those that a stage was, or is to be, made with."""
        is_data = manifest.stage == "build_scenario"
        current = self._data_fingerprint if is_data else self._fingerprint_of(manifest.stage)
        current = self._with_callbacks(current, manifest.stage)
        return current.difference(manifest.fingerprint)

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
                parameters=self._parameters(stage, iteration, detail),
                inputs=inputs,
                fingerprint=self._with_callbacks(fingerprint, stage),
                iteration=iteration,
                detail=detail,
            )
            if self.pins:
                call = replace(call, pinned_key=self.pins.get((call.name, iteration)))
            self._calls[place] = call
        return self._calls[place]

    def _parameters(self, stage: str, iteration: int, detail: str) -> dict[str, Any]:
        if stage == "build_scenario":
            parameters = data_parameters(self.hyper_params)
            files = self.scenario.data_files(self.hyper_params)
            if files:  # what is in them decides, not where they lie
                kind = Path(self.hyper_params.dataset.partition(":")[0]).name
                parameters |= {"dataset": kind, "data_files": files}
        else:
            parameters = self.stage_parameters(stage, iteration, detail)
            parameters = self.scenario.without_places(parameters)
            parameters |= self._callback_parameters(stage, iteration)
        return {**without_paths(parameters), "stage_version": self.stage_versions[stage]}

    @property
    def _loaded(self) -> dict[str, str | int]:
        """The states of earlier runs that agents begin with, as inputs of a stage."""
        return {f"checkpoint.{agent}": digest for agent, digest in self.checkpoints.items()}

    def _callback_parameters(self, stage: str, iteration: int) -> dict[str, Any]:
        """Return the callbacks that take part in a stage; nothing at all if none does."""
        last = self.callbacks and self._ends_training(stage, iteration)
        found = [
            spec.key_parameters(self.hyper_params, stage, last=bool(last))
            for spec in self.callbacks
            if spec.takes_part(stage)
        ]
        return {"callbacks": found} if found else {}

    @abstractmethod
    def _ends_training(self, stage: str, iteration: int) -> bool:
        """Return whether training ends with a stage."""

    def _with_callbacks(self, fingerprint: Fingerprint, stage: str) -> Fingerprint:
        """Add the code of the callbacks that take part in a stage."""
        kinds = [spec.kind for spec in self.callbacks if spec.takes_part(stage)]
        if not kinds:
            return fingerprint
        return Fingerprint.of_modules({**fingerprint.modules, **code_fingerprint(*kinds).modules})

    @cached_property
    def _data_fingerprint(self) -> Fingerprint:
        from ratchet.scenarios.base import digests

        own = self.scenario.own_data_code(self.hyper_params)
        code = code_fingerprint(*self.scenario.data_code(), *own)
        files = digests(self.scenario.data_prompts(self.hyper_params))
        return Fingerprint.of_modules({**code.modules, **files}) if files else code

    @cached_property
    def _code_fingerprint(self) -> Fingerprint:
        return self._fingerprint_with(self.trainer_class)

    def _fingerprint_of(self, stage: str) -> Fingerprint:
        """Return the code that does a stage of the trainer's."""
        return self._code_fingerprint

    @cached_property
    def played_files(self) -> Mapping[str, Path]:
        """The scenario's files that are no code and decide what agents do, by readable name."""
        return self.scenario.played_files(self.hyper_params, self._handler)

    @cached_property
    def _handler(self) -> ProtocolHandler:
        from ratchet.protocols.registry import build_protocol_handler

        return build_protocol_handler(self.hyper_params, base_dir=self.base_path)

    def _fingerprint_with(self, trainer: type) -> Fingerprint:
        """Return the code of a trainer's class, the scenario and the protocol."""
        handler = self._handler
        agents = self.scenario.agent_code(self.hyper_params, handler)
        code = code_fingerprint(trainer, type(self.scenario), *handler.source_classes, *agents)
        files = self.scenario.file_digests(self.hyper_params, handler)
        return Fingerprint.of_modules({**code.modules, **files})
