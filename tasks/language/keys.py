"""Stages of an arm of a language trainer, their order and their keys.

Differences from networks (:mod:`tasks.tensordict.keys`): rollouts that are stored, or of a single
iteration, are separate stages that training reads, and there are validation and suites.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.errors import ParameterError
from ratchet.plugins import paths_from
from ratchet.seeding import derive_seed
from ratchet.store.fingerprint import Fingerprint, code_fingerprint
from ratchet.tracking.stage_kinds import (
    BUILD_SCENARIO,
    INITIAL_STATE,
    PHASE_STATE,
    ROLLOUTS,
    SUITE,
    TEST,
    TRAIN,
    VALIDATE,
    StageKind,
)
from tasks.stages.calls import StageCall, Step
from tasks.stages.trained_keys import TrainedKeys
from trainers.custom_state import is_custom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ratchet.language_models.suites.running import Suite
    from ratchet.parameters.curriculum import Phase
    from ratchet.tracking.manifest import ModelKind
    from tasks.stages.keys import StageLayout
    from trainers.language.trainer import LanguageTrainer


LANGUAGE_KINDS = (
    *(BUILD_SCENARIO, INITIAL_STATE, PHASE_STATE, ROLLOUTS, TRAIN, VALIDATE, TEST, SUITE),
)


class LanguageArmKeys(TrainedKeys):
    """Stages of an arm of a language trainer."""

    family_kinds: ClassVar[tuple[StageKind, ...]] = LANGUAGE_KINDS
    task_modules: ClassVar[tuple[str, ...]] = (
        "tasks.language.stages",
        "tasks.tensordict.stages",
        "tasks.build_scenario",
    )
    session_code = ("tasks.language.session", "LanguageArmSession")

    @property
    def model_kind(self) -> ModelKind | None:
        """The kind of the final agent when loaded as a model.

        None if a service hosts it, or if there are several agents.
        """
        is_one = len(self._handler.agent_names) == 1
        return "language_model" if is_one and not self.trainer_class.traits.is_remote else None

    @property
    def optimizer_path(self) -> str:  # type: ignore[override]
        """The path of the optimizers in states; custom trainers may read them to sample."""
        is_ours = not is_custom(self.trainer_class) and not self.trainer_class.traits.is_remote
        return "learners/*/optimizer" if is_ours else ""

    @property
    def periods(self) -> tuple[int, ...]:  # type: ignore[override]
        """Training stops for validation, and between iterations whose rollouts are stored."""
        every = self.hyper_params.language.validate_every
        one = (1,) if self.trainer_class.traits.is_remote else ()
        return (*one, *(() if every is None else (every,)))

    def initial_stages(self) -> Iterator[Step]:
        """Iterate over the initial state only; empty in a retest."""
        if not self.only_tests:
            yield self.initial_state()

    def iterations(self, layout: StageLayout) -> Iterator[Iterator[Step]]:
        """Iterate over training: the stages of each piece between two stops of the layout."""
        if self.only_tests:
            return
        yield iter(self.validation(0))
        position = 0
        was_prefetched = False
        for stop in layout.stops(self):
            prefetches = self.plays_ahead and stop == position + 1
            yield self._language_iteration(position, stop, layout, was_prefetched, prefetches)
            position, was_prefetched = stop, prefetches

    def _language_iteration(
        self, start: int, stop: int, layout: StageLayout, was_prefetched: bool, prefetches: bool
    ) -> Iterator[Step]:
        """Iterate over rollouts, training (perhaps with the next rollouts) and validation."""
        yield from self.begun_phase(start)
        is_stored = layout.samples_at(start, self.num_iterations)
        if not was_prefetched and (is_stored or self.plays_apart(start, stop)):
            yield self.rollouts(start)
        train = self.train(start, stop)
        yield (iter([self.rollouts(stop)]), iter([train])) if prefetches else train
        yield from self.validation(stop)

    @property
    def plays_ahead(self) -> bool:
        """Whether an iteration's rollouts are sampled while the previous one trains."""
        return bool(self.hyper_params.language.mode == "one_step_behind")

    def validation(self, iteration: int) -> Iterator[StageCall]:
        """Iterate over the validation stages after an iteration, if any."""
        if self.validates_at(iteration):
            yield self.validate(iteration)
            yield from self.suites("validate", iteration)

    def tests(self, layout: StageLayout) -> Iterator[Step]:
        """Iterate over the tests, and the evaluation suites for tests."""
        yield from super().tests(layout)
        for iteration in self.tested_iterations:
            yield from self.suites("test", iteration)

    def suites(self, when: str, iteration: int) -> Iterator[StageCall]:
        """Iterate over the evaluation suites of validations or of tests."""
        for name, suite in self.hyper_params.evaluation.suites.items():
            if suite.when == when:
                yield self.suite(name, iteration)

    def plays_apart(self, start: int, stop: int) -> bool:
        """Return whether the rollouts of a training stage are a separate stage before it.

        Those of a single iteration are, unless the previous iteration prefetched them.
        """
        return stop == start + 1 and (start == 0 or not self.plays_ahead)

    def rollouts_during_write(self, train: StageCall) -> StageCall | None:
        """Return the rollouts that can be sampled while a training stage's state is written.

        None if they start from another stage's state, or if sampling could affect what is written.
        """
        stop, language = train.iteration, self.hyper_params.language
        if stop >= self.num_iterations or self.beginning_key(stop) != train.key:
            return None
        phase = self.phase_from(stop)
        if (
            self.plays_ahead  # they are part of the state, or of another process
            or self.trainer_class.traits.is_remote  # they are billed
            or language.train_service.world_size > 1  # ranks execute one request at a time
            or (phase is not None and phase.pools)  # its states replace the trained one
        ):
            return None
        from ratchet.language_models.engines.rollouts import find_engine  # loads torch

        # their states are taken meanwhile, and engines have the weights that are written
        engine = find_engine(language.engine.name, self.base_path)
        classes = (self.trainer_class, engine, *(spec.kind for spec in self.callbacks))
        return None if any(map(is_custom, classes)) else self.rollouts(stop)

    def testing_phase(self, iteration: int) -> Phase | None:
        """Return the phase of a state, if tests read the same parameters in it as outside.

        Its trainer already has the models.
        """
        phase = self.phase_before(iteration)
        if phase is None:
            return None
        read = self.language_class.stage_key_parameters
        is_same = read(phase.hyper_params, "test") == read(self.hyper_params, "test")
        return phase if is_same else None

    def validates_at(self, iteration: int) -> bool:
        """Return whether the state after this many iterations is validated."""
        every = self.hyper_params.language.validate_every
        return every is not None and iteration % every == 0

    def initial_state(self) -> StageCall:
        """Return the stage that creates or loads the initial models.

        Its key includes the content of the models' files, not their location.
        """
        inputs = {"data": self.build_scenario().key, **self._models, **self._loaded}
        return self._call("initial_state", inputs)

    @cached_property
    def _models(self) -> dict[str, str]:
        """Digests of the models that are read from files, by role."""
        from ratchet.language_models.local.model_locations import model_digest

        base = self.base_path or Path()
        return {f"model.{role}": model_digest(path, base) for role, path in self._paths.items()}

    @cached_property
    def _paths(self) -> dict[str, str]:
        """Paths of the models, by role; names that are no folders may be models of a service.

        Further files of a learner, such as a tokenizer, are always local.
        """
        learner, base = self.language_class.learner_class, self.base_path or Path()
        paths = self.language_class.read_models(self.hyper_params, self._handler.agent_names)
        if not learner.traits.is_remote:
            return paths
        local = learner.other_models(self.hyper_params)
        return {
            role: path for role, path in paths.items() if role in local or (base / path).is_dir()
        }

    def validate(self, iteration: int) -> StageCall:
        """Return the stage that evaluates the state after an iteration on the validation set."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.state_key(iteration),
        }
        return self._call("validate", inputs, iteration=iteration)

    def suite(self, name: str, iteration: int) -> StageCall:
        """Return the stage that evaluates a state on a suite.

        Its key includes the suite's code and files, and the versions of its libraries.
        """
        section = self.hyper_params.evaluation.suites[name]
        suite, versions = self.find_suite(name)
        inputs: dict[str, str | int] = {
            "state": self.state_key(iteration),
            "task": suite.task.digest(section.files, self.base_path),
            **{f"version.{package}": version for package, version in versions.items()},
        }
        return self._call("suite", inputs, iteration=iteration, detail=name)

    def find_suite(self, name: str) -> tuple[Suite, dict[str, str]]:
        """Return an evaluation suite and the versions of the packages that it uses."""
        from ratchet.language_models.suites.resolution import find_suite

        evaluation, seed = self.hyper_params.evaluation, self.hyper_params.seed
        agent, *others = self._handler.agent_names
        if others:
            raise ParameterError(
                f"evaluation.suites: got a game of {agent}, {', '.join(others)}; expected tasks of"
                " one agent, whose model suites evaluate."
            )
        return find_suite(
            name,
            evaluation,
            max_tokens=self.hyper_params.agents[agent].max_tokens,
            seed=derive_seed(seed, "suite") % 2**31,
            base_dir=self.base_path,
        )

    def rollouts(self, iteration: int) -> StageCall:
        """Return the stage that samples the rollouts that an iteration trains on."""
        before = max(iteration - 1, 0) if self.plays_ahead else iteration
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.beginning_key(before),
        }
        return self._call("rollouts", inputs, iteration=iteration)

    def stage_parameters(self, stage: str, iteration: int, detail: str) -> dict[str, Any]:
        """Return the parameters that a stage reads, as plain data."""
        if stage == "suite":
            return self.find_suite(detail)[0].key_parameters()
        of_another = stage in (VALIDATE.name, PHASE_STATE.name)
        read_as = self.kinds[stage].reads_as if of_another else stage
        phase = self._phase_of(stage, iteration)
        hyper_params = self.hyper_params if phase is None else phase.hyper_params
        with paths_from(self.base_path):
            parameters = self.language_class.stage_key_parameters(hyper_params, read_as, None)
        if phase is not None:
            parameters["learners"] = sorted(phase.learners)
        if phase is not None and stage == PHASE_STATE.name:
            parameters["fresh"] = sorted(phase.fresh)
        return _without(parameters, set(self._paths.values()))

    def _compute_fingerprint(
        self, stage: str, sections: Iterable[str], targets: Iterable[tuple[str, str]]
    ) -> Fingerprint:
        if stage != "suite":
            return super()._compute_fingerprint(stage, sections, targets)
        from ratchet.language_models.suites.running import run_suite

        return code_fingerprint(run_suite)  # the model's code is in the key of its state

    def _stage_code(self, stage: str) -> list[tuple[str, str]]:
        """Add the function, and the process, that sample while the previous iteration trains."""
        ahead = [
            ("tasks.language.stages", "prefetch_rollouts"),
            ("trainers.language.rollout_worker_main", "_play"),
        ]
        is_ahead = stage == "rollouts" and self.plays_ahead
        return [*super()._stage_code(stage), *(ahead if is_ahead else ())]

    def _code_of(self, stage: str) -> tuple[Callable[..., object], ...]:
        """Add the engine that generates responses."""
        from ratchet.language_models.engines.rollouts import find_engine

        engine = find_engine(self.hyper_params.language.engine.name, self.base_path)
        return (*super()._code_of(stage), engine)

    def _trainer_of(self, stage: str) -> type:
        """Return the class that samples, without a subclass that only changes learning."""
        return self.language_class.playing_class() if stage == "rollouts" else self.trainer_class

    @property
    def language_class(self) -> type[LanguageTrainer]:
        """The class of the trainer."""
        from trainers.language.trainer import LanguageTrainer

        trainer = self.trainer_class
        assert issubclass(trainer, LanguageTrainer)  # otherwise the family is another one
        return trainer


def _without(parameters: dict[str, Any], paths: set[str]) -> dict[str, Any]:
    """Remove the models' paths, since the inputs include the files' digests."""
    return {
        name: _without(value, paths)
        if isinstance(value, dict)
        else ("from files" if isinstance(value, str) and value in paths else value)
        for name, value in parameters.items()
    }
