"""``BaseKeys``: base class of the keys of every family of arms.

Reads sources and parameters only: no data, no agents.
"""

from __future__ import annotations

import copy
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias

from pydantic import BaseModel

from ratchet.errors import ParameterError, shown
from ratchet.parameters.agents import AgentsParameters
from ratchet.parameters.curriculum import read_phases
from ratchet.parameters.key_inputs import data_parameters, without_paths
from ratchet.scenarios.base import digests
from ratchet.store.closure import KnownCode, is_project
from ratchet.store.fingerprint import Fingerprint, code_fingerprint, find_definition
from ratchet.tracking.stage_kinds import KINDS, TEST, StageKind
from tasks.stages.calls import StageCall, Step

if TYPE_CHECKING:
    from ratchet.parameters.curriculum import Phase
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.base import Scenario
    from ratchet.store.manifest import Manifest
    from trainers.base import Trainer
    from trainers.callbacks.base import CallbackSpec
    from trainers.named import DeclaredStage


_Read: TypeAlias = tuple[str, frozenset[str], frozenset[tuple[str, str]]]
"""A kind of stage, the sections of parameters that it reads, and the definitions named there."""


class TrainedArm(Protocol):
    """Definitions of an arm's training by its keys."""

    @property
    def num_iterations(self) -> int:
        """The number of the arm's training iterations."""

    @property
    def periods(self) -> tuple[int, ...]:
        """Periods that end a stage of training, in addition to those of the settings."""

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Sorted iterations after which a stage of training always ends."""

    def state_key(self, iteration: int) -> str:
        """Return the key of the stage whose result is the state after this many iterations."""


class StageLayout(Protocol):
    """Decides, in addition to an arm's parameters, which stages the arm has."""

    def tested(self, keys: BaseKeys) -> list[str]:
        """Return the datasets that states are tested on."""

    def stops(self, keys: TrainedArm) -> Iterator[int]:
        """Iterate over the iterations after which a stage of training ends, up to the last."""

    def samples_at(self, iteration: int, last: int) -> bool:
        """Return whether the rollouts of the iteration that starts at a state are stored."""


class BaseKeys(ABC):
    """Stages of one arm, in execution order.

    Paths to plug-ins are relative to ``base_dir``. ``checkpoints`` are digests of states of
    earlier runs from which agents start, by agent. ``pins`` are stages of an earlier run that are
    reused although their computed keys may differ: name and iteration → key. Those of states must
    be set before any stage is requested. ``code`` is the code that the keys of other arms have
    read.

    Attributes
    ----------
    custom_code
        The digests of fingerprints that contain code which is not Ratchet's.
    """

    family_kinds: ClassVar[tuple[StageKind, ...]]
    """The kinds of stages that an arm of the family may have."""
    task_modules: ClassVar[tuple[str, ...]]
    """The modules with the function of each kind of stage, by its name; the first counts."""
    session_code: ClassVar[tuple[str, str]]
    """Module and name of the session class of the stages."""
    excluded_code: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Modules and names of definitions that no stage executes."""
    optimizer_path: str = ""
    """The path of the parts of states that only Ratchet's training reads."""

    def __init__(
        self,
        arm: str,
        hyper_params: HyperParameters,
        *,
        base_dir: str | None = None,
        pins: Mapping[tuple[str, int], str] | None = None,
        checkpoints: Mapping[str, str] | None = None,
        code: KnownCode | None = None,
    ) -> None:
        self.arm = arm
        self.hyper_params = hyper_params
        self.base_dir = base_dir
        self.base_path = None if base_dir is None else Path(base_dir)
        self.pins = dict(pins or {})
        self.checkpoints = dict(checkpoints or {})
        self._calls: dict[tuple[str, int, str], StageCall] = {}
        self._fingerprints: dict[_Read, Fingerprint] = {}
        self.custom_code: set[str] = set()
        self.code = KnownCode() if code is None else code

    @cached_property
    def trainer_class(self) -> type[Trainer]:
        """The class of the trainer, found by name, file or entry point."""
        from trainers.registry import trainer_class

        return trainer_class(self.hyper_params, self.base_dir)

    @cached_property
    def kinds(self) -> Mapping[str, StageKind]:
        """The kinds of stages that the arm may have, by name."""
        kinds = {kind.name: kind for kind in self.family_kinds}
        for kind in (stage.kind for stage in self.further_stages):
            if kind.name in {*KINDS, *kinds}:
                raise ParameterError(
                    f"trainer {self.trainer_class.__name__}: its stage {kind.name!r} has the name"
                    " of another kind of stage. Choose a different name."
                )
            kinds[kind.name] = kind
        return kinds

    @property
    def further_stages(self) -> tuple[DeclaredStage, ...]:
        """The stages of the trainer's own between training and tests."""
        return self.trainer_class.traits.further_stages

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario, which builds datasets, environments and agents."""
        from ratchet.scenarios.registry import build_scenario

        return build_scenario(self.hyper_params.scenario, self.base_path)

    @cached_property
    def callbacks(self) -> tuple[CallbackSpec, ...]:
        """The callbacks of the experiment."""
        from trainers.callbacks.registry import callback_specs

        return callback_specs(self.hyper_params, self.base_dir)

    @property
    @abstractmethod
    def num_iterations(self) -> int:
        """The number of the arm's training iterations."""

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of training with their parameters; empty without phases."""
        if not self.hyper_params.phases:
            return ()
        return read_phases(self.hyper_params, tuple(self._handler.agent_names))

    def phase_from(self, iteration: int) -> Phase | None:
        """Return the phase of the iteration that starts at this state; None without phases."""
        return next((phase for phase in self.phases if iteration < phase.stop), self._last_phase)

    def phase_before(self, iteration: int) -> Phase | None:
        """Return the phase that contains or ends with this state; None without phases."""
        return next((phase for phase in self.phases if iteration <= phase.stop), self._last_phase)

    @property
    def _last_phase(self) -> Phase | None:
        return self.phases[-1] if self.phases else None

    def parameters_in(self, iteration: int) -> HyperParameters:
        """Return the parameters of a training iteration: those of its phase, if any."""
        phase = self.phase_from(iteration)
        return self.hyper_params if phase is None else phase.hyper_params

    def pool_inputs(self, phase: Phase) -> dict[str, str]:
        """Return the states of a phase's pools as inputs of a stage: name → key."""
        return {
            f"pool.{agent}.{iteration}": self.state_key(iteration)
            for agent, iterations in (phase.pools or {}).items()
            for iteration in iterations
        }

    @property
    def only_tests(self) -> bool:
        """Whether the arm is a retest: only tests the states of an earlier run."""
        return bool(self.hyper_params.base_run.base_run_type == "rerun_tests")

    @property
    @abstractmethod
    def needed_states(self) -> list[tuple[str, int]]:
        """The stages whose results a retest tests: name and iteration."""

    @abstractmethod
    def state_key(self, iteration: int) -> str:
        """Return the key of the stage whose result is the state after this many iterations."""

    @property
    @abstractmethod
    def final_state_key(self) -> str | None:
        """The key of the stage whose result is the state after all training; None without one."""

    def stages(self, layout: StageLayout) -> Iterator[Step]:
        """Iterate over all stages in execution order, as :func:`flows.experiment_flow.run_arm`."""
        yield self.build_scenario()
        yield from self.initial_stages()
        for iteration in self.iterations(layout):
            yield from iteration
        yield from self.stages_of_trainer()
        yield from self.tests(layout)

    def stages_of_trainer(self) -> Iterator[StageCall]:
        """Iterate over the trainer's own stages; each reads data, final state, and those before."""
        inputs: dict[str, str | int] = {"data": self.build_scenario().key}
        if self.final_state_key is not None:
            inputs["state"] = self.final_state_key
        for stage in () if self.only_tests else self.further_stages:
            call = self._call(stage.kind.name, dict(inputs), iteration=self.num_iterations)
            yield call
            inputs[f"stage.{call.name}"] = call.key

    @abstractmethod
    def initial_stages(self) -> Iterator[Step]:
        """Iterate over the stages that build the state before the first iteration."""

    @abstractmethod
    def iterations(self, layout: StageLayout) -> Iterator[Iterator[Step]]:
        """Iterate over training: the stages of each iteration, or of several in one task.

        Exhaust each before requesting the next.
        """

    @abstractmethod
    def tests(self, layout: StageLayout) -> Iterator[Step]:
        """Iterate over the tests of the final state, or in a retest of all states."""

    @abstractmethod
    def stage_parameters(self, stage: str, iteration: int, detail: str) -> dict[str, Any]:
        """Return the parameters that a stage of the trainer reads, as plain data."""

    def pin(self, call: StageCall, key: str) -> None:
        """Use a stored stage for a call; before any call is requested that reads its result."""
        self.pins[call.name, call.iteration] = key
        self._calls[call.stage, call.iteration, call.detail] = replace(call, pinned_key=key)

    def copy(self) -> Self:
        """Return equal keys, in which stages can be pinned without effect on these."""
        copied = copy.copy(self)
        copied.pins, copied._calls = self.pins.copy(), {}
        return copied

    def build_scenario(self) -> StageCall:
        """Return the stage that builds the datasets."""
        return self._call("build_scenario", {})

    def initial_state(self) -> StageCall:
        """Return the stage that builds the state before any training."""
        inputs: dict[str, str | int] = {"data": self.build_scenario().key, **self._loaded}
        return self._call("initial_state", inputs)

    def code_changes(self, manifest: Manifest | StageCall) -> list[str]:
        """Return the modules that differ from those that a stage was computed with."""
        current = self.fingerprint(manifest.stage, manifest.parameters)
        return current.difference(manifest.fingerprint)

    def fingerprint(self, stage: str, parameters: Mapping[str, object]) -> Fingerprint:
        """Return the fingerprint of the code that computes stages of a kind.

        ``parameters`` are those that the stage reads: the classes of these sections count, and
        the definitions of Ratchet and of plug-ins that they name by ``_target_``.
        """
        read = (stage, frozenset(parameters), frozenset(_targets(parameters)))
        if read not in self._fingerprints:
            self._fingerprints[read] = self._compute_fingerprint(*read)
        return self._fingerprints[read]

    def _compute_fingerprint(
        self, stage: str, sections: Iterable[str], targets: Iterable[tuple[str, str]]
    ) -> Fingerprint:
        hyper_params, scenario = self.hyper_params, self.scenario
        work = [each.work for each in self.further_stages if each.kind.name == stage]
        definitions = [] if work else self._stage_code(stage)
        if stage == "build_scenario":
            code = (*scenario.data_code(), *scenario.own_data_code(hyper_params))
            definitions += _dataset_methods(type(scenario))
            if scenario.asked_for_data(hyper_params):
                definitions.append(("ratchet.language_models.auxiliary_calls", "ModelCalls"))
            files = digests(scenario.data_prompts(hyper_params))
        else:
            code = self._code_of(stage)
            definitions += [self.session_code, *targets]
            files = dict(scenario.file_digests(hyper_params, self._handler))
        callbacks = [spec.kind for spec in self.callbacks if spec.takes_part(stage)]
        known = hyper_params.known_keys()
        read = [getattr(hyper_params, name) for name in {"agents", *sections} if name in known]
        fingerprint = code_fingerprint(
            *callbacks,
            *_parameter_classes(read),
            *work,
            definitions=definitions,
            excluded=self.excluded_code,
            code=self.code,
            shared=code,
        )
        modules = {**fingerprint.modules, **files}
        is_custom = not all(map(is_project, fingerprint.modules))
        if is_custom:
            modules |= self._declared_files
        for each in (*code, *callbacks):
            modules |= _files_of_class(each)
        result = Fingerprint.from_modules(modules)
        if is_custom:
            self.custom_code.add(result.digest)
        return result

    @property
    def folder(self) -> Path:
        """The experiment's folder, by default the working folder."""
        return Path.cwd() if self.base_path is None else self.base_path

    @cached_property
    def _declared_files(self) -> dict[str, str]:
        """Digests of the experiment's ``files``, by label."""
        return _digests_of("files", self.hyper_params.files, self.folder)

    def _stage_code(self, stage: str) -> list[tuple[str, str]]:
        """Return the function of a stage, as module and name."""
        return [find_definition(self.task_modules, stage)]

    def _code_of(self, stage: str) -> tuple[Callable[..., object], ...]:
        """Return the classes that compute a stage: the trainer, the scenario and the protocol."""
        handler = self._handler
        agents = self.scenario.agent_code(self.hyper_params, handler)
        return (
            self._trainer_of(stage),
            type(self.scenario),
            *handler.source_classes,
            *agents,
        )

    def _trainer_of(self, stage: str) -> type:
        """Return the class of the trainer that computes a stage."""
        return self.trainer_class

    def _call(
        self,
        stage: str,
        inputs: dict[str, str | int],
        *,
        iteration: int = 0,
        detail: str = "",
    ) -> StageCall:
        identity = (stage, iteration, detail)
        if identity not in self._calls:
            parameters = self._parameters(stage, iteration, detail)
            call = StageCall(
                arm=self.arm,
                kind=self.kinds[stage],
                parameters=parameters,
                inputs=inputs,
                fingerprint=self.fingerprint(stage, parameters),
                iteration=iteration,
                detail=detail,
            )
            if self.pins:
                call = replace(call, pinned_key=self.pins.get((call.name, iteration)))
            self._calls[identity] = call
        return self._calls[identity]

    def _parameters(self, stage: str, iteration: int, detail: str) -> dict[str, Any]:
        if stage == "build_scenario":
            parameters = data_parameters(self.hyper_params)
            files = self.scenario.data_files(self.hyper_params)
            if files:  # the key includes their content, not their location
                kind = Path(self.hyper_params.dataset.partition(":")[0]).name
                parameters |= {"dataset": kind, "data_files": files}
        else:
            is_further = stage not in KINDS  # a plug-in's, which reads a test's by default
            reads_as = (self.kinds[stage].reads_as or TEST.name) if is_further else stage
            parameters = self.stage_parameters(reads_as, iteration, detail)
            parameters = self.scenario.without_places(parameters)
            parameters |= self._callback_parameters(stage, iteration)
        return {**without_paths(parameters), "stage_version": self.kinds[stage].version}

    @property
    def _loaded(self) -> dict[str, str | int]:
        """States of earlier runs from which agents start, as inputs of a stage."""
        return {f"checkpoint.{agent}": digest for agent, digest in self.checkpoints.items()}

    def _callback_parameters(self, stage: str, iteration: int) -> dict[str, Any]:
        """Return the parameters of the callbacks that take part in a stage; empty if none does."""
        last = self.callbacks and self._ends_training(stage, iteration)
        parameters = [
            spec.key_parameters(self.hyper_params, stage, last=bool(last))
            for spec in self.callbacks
            if spec.takes_part(stage)
        ]
        return {"callbacks": parameters} if parameters else {}

    @abstractmethod
    def _ends_training(self, stage: str, iteration: int) -> bool:
        """Return whether training ends with a stage."""

    @cached_property
    def played_files(self) -> Mapping[str, Path]:
        """The scenario's data files that affect its agents, by readable name."""
        return self.scenario.played_files(self.hyper_params, self._handler)

    @cached_property
    def _handler(self) -> ProtocolHandler:
        from ratchet.protocols.registry import build_protocol_handler

        return build_protocol_handler(self.hyper_params, base_dir=self.base_path)


def _files_of_class(kind: object) -> dict[str, str]:
    """Return the digests of the files that a custom class declares in ``reads``, by label."""
    patterns = getattr(kind, "reads", None)
    if not isinstance(kind, type) or is_project(kind.__module__) or callable(patterns):
        return {}
    owner = f"{kind.__qualname__}.reads"
    folder = Path(inspect.getfile(kind)).parent
    return _digests_of(owner, (patterns,) if isinstance(patterns, str) else patterns or (), folder)


def _digests_of(owner: str, patterns: Iterable[str], folder: Path) -> dict[str, str]:
    """Return the digests of files by label; ``owner`` declares their paths or patterns.

    Raises ParameterError if a pattern matches no file.
    """
    files: dict[str, Path] = {}
    for pattern in patterns:
        matches = [path for path in map(Path, glob(str(folder / pattern), recursive=True))]
        matches = sorted(path for path in matches if path.is_file())
        if not matches:
            raise ParameterError(
                f"{owner}: {shown(pattern)} matches no file in {folder}, expected the path or the"
                " pattern of files that the code reads. Correct it, or remove it."
            )
        files |= {f"file {os.path.relpath(path, folder)}": path for path in matches}
    return digests(files)


def _dataset_methods(scenario: type) -> Iterator[tuple[str, str]]:
    """Iterate over the methods of Ratchet's classes that build a scenario's datasets."""
    for kind in scenario.__mro__:
        for name in ("make_datasets", "build_datasets"):
            if is_project(kind.__module__) and name in vars(kind):
                yield kind.__module__, f"{kind.__name__}.{name}"


def _targets(data: object) -> Iterator[tuple[str, str]]:
    """Iterate over the definitions that parameters name by ``_target_``."""
    if isinstance(data, Mapping):
        target = data.get("_target_")
        if isinstance(target, str) and "." in target:
            module, _, name = target.rpartition(".")
            yield module, name
        for each in data.values():
            yield from _targets(each)
    elif isinstance(data, list | tuple):
        for each in data:
            yield from _targets(each)


def _parameter_classes(sections: Iterable[object]) -> Iterator[type]:
    """Iterate over the classes of parameter sections and of the agents' parameters.

    Their methods may compute; classes of fields count because annotations name them.
    """
    for section in sections:
        if isinstance(section, BaseModel | AgentsParameters):
            yield type(section)
        if isinstance(section, AgentsParameters):
            yield from (type(agent) for agent in section.values())
