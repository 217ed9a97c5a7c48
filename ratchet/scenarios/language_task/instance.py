"""The components of an experiment on tasks: its data, what is around them, and how to play them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ratchet.games.match import Game
from ratchet.scenarios.base import ScenarioInstance
from ratchet.scenarios.language_task.rollout_generation import (
    FailFast,
    FailurePolicy,
    GeneratedRollouts,
    MinimumSuccesses,
    ModelPlayer,
    Retry,
    Rules,
    Sampling,
    play,
)
from ratchet.scenarios.language_task.task import TaskDataset, prompt_format

if TYPE_CHECKING:
    from ratchet.games.match import Chooser
    from ratchet.language_models.engines.rollouts import RolloutEngine
    from ratchet.language_models.local.tokenizer import ChatTokenizer
    from ratchet.language_models.local.warm_up import Demonstration
    from ratchet.language_models.types import ChatMessage
    from ratchet.rollouts.trajectory import Trajectory
    from ratchet.rollouts.transcript_content import Transcript
    from ratchet.scenarios.language_task.parameters import LanguageAgentParameters
    from ratchet.scenarios.language_task.sources.base import TaskSource


@dataclass(frozen=True)
class LanguageAgent:
    """An agent by name; its trainer creates its model, unless the function ``choose`` acts."""

    name: str
    parameters: LanguageAgentParameters
    choose: Chooser | None = None


@dataclass(frozen=True)
class TaskEnvironment:
    """The game on one dataset, and the source of its tasks."""

    dataset: TaskDataset
    source: TaskSource
    rules: Rules


class SampledModel(NamedTuple):
    """A model's engine and tokenizer."""

    engine: RolloutEngine
    tokenizer: ChatTokenizer


_Instance: TypeAlias = ScenarioInstance[TaskDataset, TaskEnvironment, LanguageAgent]


class LanguageTaskInstance(_Instance):
    """Components of an experiment for trainers of language models."""

    def play(
        self,
        dataset: str,
        indices: Sequence[int],
        models: Mapping[str, SampledModel | Chooser],
        *,
        iteration: int,
        attempt: int = 0,
        is_validation: bool = False,
        model_version: int = 0,
        redraws: Mapping[str, int] = MappingProxyType({}),
    ) -> GeneratedRollouts:
        """Generate rollouts of tasks of a dataset by index, as configured in ``language``.

        ``models`` are those of agents by name, or functions that choose for them, which play once;
        other agents act by their ``choose``, or at random. Without learning, each
        ``samples_per_test`` times at ``test_temperature``. ``redraws``: how often each turn of an
        agent is sampled again. Raises as
        :func:`ratchet.scenarios.language_task.rollout_generation.play`.
        """
        language = self.hyper_params.language
        group_size = language.samples_per_test if is_validation else language.group_size
        if not all(isinstance(model, SampledModel) for model in models.values()):
            group_size = 1
        environment = self.environments[dataset]
        return play(
            [environment.dataset[index] for index in indices],
            players={
                name: ModelPlayer(*model, self._sampling(agent, is_test=is_validation))
                if isinstance(model := models.get(name, agent.choose), SampledModel)
                else model
                for name, agent in self.agents.items()
            },
            rules=replace(environment.rules, max_sequence_length=language.max_sequence_length),
            group_size=group_size,
            iteration=iteration,
            seed=self.hyper_params.seed,
            redraws=redraws,
            failure=self._failure_policy(),
            attempt=attempt,
            is_validation=is_validation,
            model_version=model_version,
        )

    def _sampling(self, agent: LanguageAgent, *, is_test: bool) -> Sampling:
        parameters = agent.parameters
        tests = self.hyper_params.language.test_temperature
        temperature = tests if is_test else parameters.temperature
        return Sampling(parameters.max_tokens, temperature, parameters.top_p)

    def transcripts(
        self,
        dataset: str,
        trajectories: Sequence[Trajectory],
        tokenizers: Mapping[str, ChatTokenizer],
    ) -> list[Transcript]:
        """Return the prompts and answers of tasks of a dataset, for the report.

        ``tokenizers`` are those of the agents' models, by agent.
        """
        module = import_module("ratchet.scenarios.language_task.transcripts")
        written: list[Transcript] = module.task_transcripts(
            trajectories, self.datasets[dataset], tokenizers
        )
        return written

    def _failure_policy(self) -> FailurePolicy:
        failures = self.hyper_params.language.failures
        match failures.policy:
            case "retry":
                return Retry(failures.retries)
            case "at_least":
                return MinimumSuccesses(failures.at_least)
            case _:
                return FailFast()

    @property
    def characters(self) -> str:
        """All characters of tasks, answers and environments, each once.

        For the tokenizer of a small model built for them.
        """
        environment = self.train_environment
        written = set(environment.source.characters())
        if not written:
            for each in self.environments.values():
                for task in each.dataset:
                    texts = [message.content for message in task.messages]
                    written.update(*texts, each.source.demonstrate(task))
        rules = environment.rules
        return "".join(sorted({*written, *rules.system_prompt, *rules.environment.characters()}))

    def demonstrations(self, tokenizer: ChatTokenizer) -> list[Demonstration]:
        """Return how the training tasks are done well, as the model would read and write it."""
        from ratchet.language_models.local.warm_up import Demonstration

        environment = self.train_environment
        rules = environment.rules
        writer = prompt_format(tokenizer, chat=rules.chat)
        pairs: Iterable[tuple[Sequence[ChatMessage], str]] = chain.from_iterable(
            map(environment.source.demonstrations, environment.dataset)
        )
        if isinstance(rules.environment, Game):  # whose matches give more than are used
            warm_ups = [agent.parameters.warm_up for agent in self.agents.values()]
            pairs = islice(pairs, max(each.num_steps * each.batch_size for each in warm_ups))
        return [
            Demonstration(tuple(writer.prompt(rules.opening(messages))), tuple(writer.reply(reply)))
            for messages, reply in pairs
        ]
