"""The scenario of tasks that a language model does, learning from its own tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ratchet.errors import DataError, ParameterError
from ratchet.games import OPEN_SPIEL
from ratchet.games.loading import game_class, make_game
from ratchet.games.match import Game
from ratchet.parameters.base import Reference
from ratchet.plugins import file_at, is_class_spec, load_callable
from ratchet.scenarios.base import Scenario
from ratchet.scenarios.hub import hash_files
from ratchet.scenarios.language_task.environments.base import (
    ENVIRONMENTS,
    LanguageEnvironment,
    SingleTurn,
)
from ratchet.scenarios.language_task.evaluators import ExactMatch, build_evaluator, load_evaluator
from ratchet.scenarios.language_task.instance import (
    LanguageAgent,
    LanguageTaskInstance,
    TaskEnvironment,
)
from ratchet.scenarios.language_task.parameters import LanguageAgentParameters
from ratchet.scenarios.language_task.protocol import TaskProtocolHandler
from ratchet.scenarios.language_task.rollout_generation import Rules
from ratchet.scenarios.language_task.sources.base import SOURCES, Sizes, TaskFiles, TaskSource
from ratchet.scenarios.language_task.sources.matches import Matches
from ratchet.scenarios.language_task.task import TaskDataset, check_ids
from ratchet.scenarios.language_task.validation import VALIDATION, set_apart
from ratchet.scenarios.registry import register_scenario

if TYPE_CHECKING:
    from ratchet.games.match import Chooser
    from ratchet.parameters.agents import AgentParameters
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.protocols.base import ProtocolHandler
    from ratchet.scenarios.language_task.evaluators import Evaluator
    from ratchet.scenarios.language_task.parameters import LanguageTaskParameters


@register_scenario("language_task")
class LanguageTaskScenario(Scenario):
    """A language model does tasks that are scored."""

    # data that selected or stopped a run cannot test it
    untested: ClassVar[frozenset[str]] = frozenset({"train", VALIDATION})

    @classmethod
    def agent_parameters(cls) -> type[AgentParameters]:
        """Return the model of language models that learn from tokens."""
        return LanguageAgentParameters

    def needed_packages(self, hyper_params: HyperParameters) -> Sequence[str]:
        """Return the packages of the tokenizer."""
        return ("tokenizers",)

    def build_datasets(self, hyper_params: HyperParameters) -> dict[str, TaskDataset]:
        """Sample or read the tasks."""
        if hyper_params.validation.size:
            raise ParameterError(
                f"validation.size: got {hyper_params.validation.size} with language tasks. Set"
                " language_task.num_validation to the number of tasks instead."
            )
        section: LanguageTaskParameters = hyper_params.language_task
        seed = hyper_params.seed if section.dataset_seed is None else section.dataset_seed
        num_validation, num_train = section.num_validation, section.num_train
        both = None if num_train is None else num_train + num_validation
        sizes = Sizes(both, section.num_test, hyper_params.test_size)
        built = self._source(hyper_params).build(seed, sizes)
        datasets = set_apart(built, num_validation, num_train)
        if untested := sorted(datasets.keys() - self.untested - {*self.test_sets(hyper_params)}):
            raise DataError(
                f"dataset: {hyper_params.dataset} has the sets {untested}, which no stage tests"
                " on. Expected 'train', 'test' and, optionally, 'validation'; further test sets are"
                " files of a folder."
            )
        check_ids(datasets)
        max_train_size = hyper_params.dataset_options.max_train_size
        return {
            name: TaskDataset(tasks[:max_train_size] if name == "train" else tasks)
            for name, tasks in datasets.items()
        }

    def test_sets(self, hyper_params: HyperParameters) -> list[str]:
        """Return ``test`` and the further sets that a folder of files has."""
        files = self._files(hyper_params)
        if files is None or not files.is_dir():
            return ["test"]
        extra = {file.stem for file in files.glob("*.jsonl")} - {"test", *self.untested}
        return ["test", *sorted(extra)]

    def data_code(self) -> tuple[Callable[..., object], ...]:
        """Return the code that draws, reads and divides tasks."""
        return (TaskDataset, TaskFiles, set_apart)

    def own_data_code(self, hyper_params: HyperParameters) -> tuple[Callable[..., object], ...]:
        """Return the source of these tasks."""
        game = game_class(hyper_params.dataset, self.base_dir)
        if game is not None:
            return (Matches, game)
        return () if self._files(hyper_params) else (self._source_class(hyper_params),)

    def data_files(self, hyper_params: HyperParameters) -> dict[str, str]:
        """Return the hashes of the files of tasks, and the versions of a game's packages."""
        game = game_class(hyper_params.dataset, self.base_dir)
        if game is not None:
            return {f"version of {package}": version(package) for package in game.packages}
        files = self._files(hyper_params)
        return {} if files is None else hash_files(files)

    def without_places(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Remove paths of task files: their content is in the data's key."""
        dataset = parameters.get("dataset")
        if not isinstance(dataset, str) or is_class_spec(dataset):
            return parameters
        return {**parameters, "dataset": Path(dataset).name}

    def agent_code(
        self, hyper_params: HyperParameters, protocol_handler: ProtocolHandler
    ) -> tuple[Callable[..., object], ...]:
        """Return the environment and evaluator of tasks, and functions that act."""
        section: LanguageTaskParameters = hyper_params.language_task
        code = list(self.own_data_code(hyper_params)) or [TaskFiles]
        environment: type[LanguageEnvironment | Game]
        if section.environment is not None:
            environment = ENVIRONMENTS.find(section.environment.name, self.base_dir)
        else:
            environment = type(self._environment(section, self._source(hyper_params)))
        code.append(environment)
        if section.evaluator is not None:
            code.append(load_evaluator(section.evaluator, self.base_dir))
        elif not issubclass(environment, Game) and not environment.scores_itself:
            code.append(ExactMatch)
        choosers = [self._chooser(hyper_params, name) for name in protocol_handler.agent_names]
        return (*code, *filter(None, choosers))

    def _chooser(self, hyper_params: HyperParameters, agent: str) -> Chooser | None:
        """Return the function that acts for an agent, if one is set."""
        model = _agent_parameters(hyper_params, agent).model
        if not is_class_spec(model):
            return None
        return cast("Chooser", load_callable(model, self.base_dir, f"agents.{agent}.model"))

    def load_dataset(self, directory: Path) -> TaskDataset:
        """Read tasks that were saved in a folder."""
        return TaskDataset.load(directory)

    def build_instance(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        protocol_handler: ProtocolHandler,
        datasets: Mapping[str, TaskDataset],
        trainer_type: str,
    ) -> LanguageTaskInstance:
        """Build the instance from environments and agents; the trainer builds their models."""
        if not isinstance(protocol_handler, TaskProtocolHandler):
            raise ParameterError(
                f"interaction_protocol: got {type(protocol_handler).__name__} with scenario"
                " 'language_task', expected 'environment', since environments of tasks define"
                " their rules. Leave it out."
            )
        source = self._source(hyper_params)
        rules = self._rules(hyper_params.language_task, source)
        return LanguageTaskInstance(
            hyper_params=hyper_params,
            settings=settings,
            protocol_handler=protocol_handler,
            datasets=dict(datasets),
            environments={
                name: TaskEnvironment(dataset, source, rules) for name, dataset in datasets.items()
            },
            agents={
                name: LanguageAgent(
                    name, _agent_parameters(hyper_params, name), self._chooser(hyper_params, name)
                )
                for name in protocol_handler.agent_names
            },
        )

    def _files(self, hyper_params: HyperParameters) -> Path | None:
        """Return the file or folder that tasks are read from; None if they are not."""
        name = hyper_params.dataset
        if is_class_spec(name) or name.startswith(OPEN_SPIEL) or name in SOURCES.names():
            return None
        path = file_at(name, self.base_dir)
        return path if path.suffix == ".jsonl" or os.path.isdir(path) else None

    def _source_class(self, hyper_params: HyperParameters) -> type[TaskSource]:
        return SOURCES.find(hyper_params.dataset, self.base_dir)

    def _source(self, hyper_params: HyperParameters) -> TaskSource:
        files = self._files(hyper_params)
        section: LanguageTaskParameters = hyper_params.language_task
        if files is not None:
            return TaskFiles(section, files)
        game = make_game(hyper_params.dataset, section.task_options, self.base_dir)
        if game is not None:
            return Matches(section, game)
        return self._source_class(hyper_params)(section)

    def _rules(self, section: LanguageTaskParameters, source: TaskSource) -> Rules:
        instruction = source.instruction if section.chat else ""
        prompt = instruction if section.system_prompt is None else section.system_prompt
        environment = self._environment(section, source)
        return Rules(
            environment=environment,
            evaluator=self._evaluator(section, environment),
            chat=section.chat,
            system_prompt=prompt,
            max_turns=section.max_turns,
        )

    def _evaluator(
        self, section: LanguageTaskParameters, environment: LanguageEnvironment | Game
    ) -> Evaluator | None:
        if section.evaluator is not None:
            return build_evaluator(section.evaluator, self.base_dir)
        scores_itself = isinstance(environment, Game) or environment.scores_itself
        return None if scores_itself else ExactMatch()

    def _environment(
        self, section: LanguageTaskParameters, source: TaskSource
    ) -> LanguageEnvironment | Game:
        environment = source.environment()
        if isinstance(environment, Game) and (section.environment or section.evaluator):
            raise ParameterError(
                f"language_task: got environment={section.environment},"
                f" evaluator={section.evaluator} with a game as dataset, which has its own rules"
                " and rewards. Leave them out."
            )
        if section.environment is not None:
            return build_environment(section.environment, self.base_dir)
        return environment or SingleTurn()


def build_environment(reference: Reference, base_dir: Path | None = None) -> LanguageEnvironment:
    """Build the environment that an experiment names."""
    environment_class = ENVIRONMENTS.find(reference.name, base_dir)
    try:
        return environment_class(**reference.given)
    except TypeError as error:
        raise ParameterError(
            f"language_task.environment: {reference.name} does not accept"
            f" {dict(reference.given)}: {error}."
        ) from error


def _agent_parameters(hyper_params: HyperParameters, name: str) -> LanguageAgentParameters:
    section = hyper_params.agents[name]
    if not isinstance(section, LanguageAgentParameters):
        raise ParameterError(
            f"agents.{name}: got {type(section).__name__}, expected LanguageAgentParameters."
        )
    return section
