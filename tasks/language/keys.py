"""Which stages an arm of a language trainer consists of, in which order, and the key of each.

As of networks (:mod:`tasks.tensordict.keys`), but for two things: rollouts that are asked for, or
played one iteration a stage, are stages of their own that training reads, and there is validation.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ratchet.plugins import paths_from
from ratchet.seeding import derive_seed
from ratchet.store.fingerprint import Fingerprint, code_fingerprint
from tasks.stages.calls import StageCall
from tasks.stages.sequence import Beside
from tasks.tensordict.keys import STAGE_VERSIONS as NETWORK_STAGE_VERSIONS
from tasks.tensordict.keys import ArmKeys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratchet.language_models.suites.running import Suite
    from ratchet.tracking.manifest import ModelKind
    from tasks.stages.sequence import Course, Step
    from trainers.language.trainer import LanguageTrainer


class LanguageArmKeys(ArmKeys):
    """The stages of one arm of a language trainer."""

    stage_versions: ClassVar[dict[str, int]] = {
        **NETWORK_STAGE_VERSIONS,
        "validate": 1,
        "suite": 1,
    }

    @property
    def model_kind(self) -> ModelKind | None:
        """What its final agent is to whoever loads it; None where a service has it."""
        here = self.language_class.learner_class.has_model_here
        return "language_model" if here else None

    @property
    def periods(self) -> tuple[int, ...]:  # type: ignore[override]
        """Training stops where it is validated, and between iterations whose rollouts are kept."""
        every = self.hyper_params.language.validate_every
        one = (1,) if self.language_class.learner_class.keeps_rollouts else ()
        return (*one, *(() if every is None else (every,)))

    def training(self, course: Course) -> Iterator[Step]:
        """Go through data, initial state, and for each piece of training: play, learn, validate."""
        yield self.build_scenario()
        if self.only_tests:
            return
        yield self.initial_state()
        position, played = 0, -1
        yield from self.validation(0)
        for stop in course.stops(self):
            sampled = course.samples_at(position, self.num_iterations)
            if position != played and (sampled or self.plays_apart(position, stop)):
                yield self.rollouts(position)
            train = self.train(position, stop)
            if self.plays_ahead and stop == position + 1:
                yield Beside(self.rollouts(stop), train)
                played = stop
            else:
                yield train
            yield from self.validation(stop)
            position = stop

    @property
    def plays_ahead(self) -> bool:
        """Whether what an iteration learns from is played while the one before it learns."""
        return bool(self.hyper_params.language.mode == "one_step_behind")

    def validation(self, iteration: int) -> Iterator[StageCall]:
        """Go through what looks after training at an iteration, if anything does."""
        if self.validates_at(iteration):
            yield self.validate(iteration)
            yield from self.suites("validate", iteration)

    def tests(self, course: Course) -> Iterator[Step]:
        """Go through the tests, and the evaluation suites that are for tests."""
        yield from super().tests(course)
        for iteration in self.tested_iterations:
            yield from self.suites("test", iteration)

    def suites(self, when: str, iteration: int) -> Iterator[StageCall]:
        """Go through the evaluation suites of a moment.

        Those that are asked at each validation have been asked at the last state if it was.
        """
        for name, suite in self.hyper_params.evaluation.suites.items():
            if suite.when == when:
                yield self.suite(name, iteration)

    def plays_apart(self, start: int, stop: int) -> bool:
        """Return whether the rollouts that a stage of training learns from are a stage before it.

        Those of a single iteration are, unless the iteration before has played them already.
        """
        return stop == start + 1 and (start == 0 or not self.plays_ahead)

    def validates_at(self, iteration: int) -> bool:
        """Return whether the state after so many iterations is validated."""
        every = self.hyper_params.language.validate_every
        return every is not None and iteration % every == 0

    def initial_state(self) -> StageCall:
        """Return the stage that makes or loads the models at the beginning.

        What lies in the models' files decides; where they lie does not.
        """
        inputs: dict[str, str | int] = {"data": self.build_scenario().key, **self._models}
        return self._call("initial_state", inputs, self._code_fingerprint)

    @cached_property
    def _models(self) -> dict[str, str]:
        """The digests of the models that are read from files, by what they are for."""
        from ratchet.language_models.local.places import model_digest

        base = self.base_path or Path()
        return {f"model.{role}": model_digest(place, base) for role, place in self._places.items()}

    @cached_property
    def _places(self) -> dict[str, str]:
        """Where models are read from; a name that is no folder may be that of a service's model.

        What else a learner reads, such as a tokenizer, it reads here.
        """
        learner, base = self.language_class.learner_class, self.base_path or Path()
        found = self.language_class.read_models(self.hyper_params)
        if learner.has_model_here:
            return found
        here = learner.other_models(self.hyper_params)
        return {
            role: place for role, place in found.items() if role in here or (base / place).is_dir()
        }

    def validate(self, iteration: int) -> StageCall:
        """Return the stage that plays the validation set after so many iterations."""
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.state_key(iteration),
        }
        return self._call("validate", inputs, self._code_fingerprint, iteration=iteration)

    def suite(self, name: str, iteration: int) -> StageCall:
        """Return the stage that evaluates a state on a suite.

        Its key has what the suite's code and files hold, and in which versions its libraries are.
        """
        section = self.hyper_params.evaluation.suites[name]
        suite, versions = self.suite_asked(name)
        inputs: dict[str, str | int] = {
            "state": self.state_key(iteration),
            "task": suite.task.digest(section.files, self.base_path),
            **{f"version.{package}": version for package, version in versions.items()},
        }
        code = self._suite_fingerprint
        return self._call("suite", inputs, code, iteration=iteration, detail=name)

    def suite_asked(self, name: str) -> tuple[Suite, dict[str, str]]:
        """Return what a suite asks, and the versions of the packages that it stands on."""
        from ratchet.language_models.suites.asking import find_suite

        evaluation, seed = self.hyper_params.evaluation, self.hyper_params.seed
        (agent,) = self._handler.agent_names
        return find_suite(
            name,
            evaluation,
            max_tokens=self.hyper_params.agents[agent].max_tokens,
            seed=derive_seed(seed, "suite") % 2**31,
            base_dir=self.base_path,
        )

    def rollouts(self, iteration: int) -> StageCall:
        """Return the stage that plays what an iteration learns from."""
        before = max(iteration - 1, 0) if self.plays_ahead else iteration
        inputs: dict[str, str | int] = {
            "data": self.build_scenario().key,
            "state": self.state_key(before),
        }
        return self._call("rollouts", inputs, self._playing_fingerprint, iteration=iteration)

    def stage_parameters(self, stage: str, iteration: int, detail: str) -> dict[str, Any]:
        """Return the parameters that a stage reads, as plain data."""
        if stage == "suite":
            return self.suite_asked(detail)[0].key_parameters()
        read_as = "test" if stage == "validate" else stage
        with paths_from(self.base_path):
            found = self.language_class.stage_key_parameters(self.hyper_params, read_as, None)
        return _without(found, set(self._places.values()))

    def _fingerprint_of(self, stage: str) -> Fingerprint:
        others = {"rollouts": "_playing_fingerprint", "suite": "_suite_fingerprint"}
        found: Fingerprint = getattr(self, others.get(stage, "_code_fingerprint"))
        return found

    @cached_property
    def _suite_fingerprint(self) -> Fingerprint:
        """The code that has suites run and reads their logs; that of the model is in its state."""
        from ratchet.language_models.suites.running import run_suite

        return code_fingerprint(run_suite)

    @cached_property
    def _playing_fingerprint(self) -> Fingerprint:
        """The code that plays: without the class that only says how to learn from it."""
        return self._fingerprint_with(self.language_class.playing_class())

    def _fingerprint_with(self, trainer: type) -> Fingerprint:
        """Return the code of the engine that writes answers, too."""
        from ratchet.language_models.local.engines import find_engine

        engine = find_engine(self.hyper_params.language.engine.name, self.base_path)
        modules = super()._fingerprint_with(trainer).modules
        return Fingerprint.of_modules({**modules, **code_fingerprint(engine).modules})

    @property
    def language_class(self) -> type[LanguageTrainer]:
        """The class of the trainer."""
        from trainers.language.trainer import LanguageTrainer

        found = self.trainer_class
        assert issubclass(found, LanguageTrainer)  # else the arm is of another family
        return found


def _without(parameters: dict[str, Any], places: set[str]) -> dict[str, Any]:
    """Leave out where models lie: their files' digests are among the inputs."""
    return {
        name: _without(value, places)
        if isinstance(value, dict)
        else ("from files" if isinstance(value, str) and value in places else value)
        for name, value in parameters.items()
    }
