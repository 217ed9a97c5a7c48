"""Upper bounds on a text experiment's use of its services: calls, tokens, cost, and time.

Every game is assumed to reach its last round, and every message its token limit. ``calls``, tokens
and ``cost`` assume that every reply can be parsed; ``most_calls`` and ``most_cost`` include all
retries of replies that cannot. Neither includes lost responses or recreated jobs: their number is
unknown, and the budget counts each at its maximum when it occurs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from ratchet.errors import ParameterError
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.fine_tune_jobs import AUTO_EPOCHS
from ratchet.language_models.pricing import FREE, ModelPrice, PriceTable
from ratchet.parameters.chat_agents import TextAgentParameters
from ratchet.parameters.curriculum import read_phases
from ratchet.parameters.settings import ExperimentSettings
from ratchet.parameters.text_trainers import TextRlParameters, count_rollouts, count_tests

if TYPE_CHECKING:
    from pathlib import Path

    from ratchet.language_models.auxiliary_calls import AuxiliaryModel
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.service_fields import ServedModel
    from ratchet.protocols.base import ProtocolHandler

SUPERVISOR_TOKENS = 120
"""Prompt tokens added by a supervisor's message."""

PROBLEM_TOKENS = 600
"""Default tokens of a question, a solution and their instructions."""
CALL_SECONDS = 2.0
JOB_SECONDS = 900.0
"""Assumed durations of a paid service's call and fine-tune job; the embedded one is faster."""
EMBEDDED_CALL_SECONDS = 0.1
EMBEDDED_JOB_SECONDS = 60.0


class Sampler(Protocol):
    """Attributes of a trainer class that estimates use."""

    @classmethod
    def responses_per_step(cls, hyper_params: HyperParameters) -> int:
        """Return the number of replies sampled at each step: 1 for a game, more for a tree."""

    @classmethod
    def redraws_per_turn(cls, hyper_params: HyperParameters) -> Mapping[str, int]:
        """Return how often each turn of an agent is sampled again from its prefix, by agent."""

    @classmethod
    def declares_sample_count(cls) -> bool:
        """Return whether these are right for how the class samples."""

    @classmethod
    def examples_per_rollout(cls, hyper_params: HyperParameters, num_rounds: int) -> float:
        """Return the most examples that a game, or a tree, yields for an agent."""


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """One stage of one iteration; ``iteration`` is -1 for the final test.

    ``cost`` excludes the models in ``unpriced_models``. ``most_calls`` and ``most_cost`` include
    all retries of replies that cannot be parsed. If a trainer's number of replies is unknown,
    ``is_known`` is False and all figures are 0.
    """

    stage: str
    iteration: int
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    training_tokens: int = 0
    cost: float = 0.0
    seconds: float = 0.0
    unpriced_models: tuple[str, ...] = ()
    most_calls: int = 0
    most_cost: float = 0.0
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class ExperimentEstimate:
    """All stages, in order."""

    stages: tuple[StageEstimate, ...]

    @property
    def total(self) -> StageEstimate:
        """The sum of all stages."""
        total = StageEstimate("total", -1)
        for stage in self.stages:
            total = replace(
                total,
                calls=total.calls + stage.calls,
                prompt_tokens=total.prompt_tokens + stage.prompt_tokens,
                completion_tokens=total.completion_tokens + stage.completion_tokens,
                training_tokens=total.training_tokens + stage.training_tokens,
                cost=total.cost + stage.cost,
                seconds=total.seconds + stage.seconds,
                most_calls=total.most_calls + stage.most_calls,
                most_cost=total.most_cost + stage.most_cost,
                unpriced_models=tuple(sorted({*total.unpriced_models, *stage.unpriced_models})),
                is_known=total.is_known and stage.is_known,
            )
        return total


def estimate_experiment(
    hyper_params: HyperParameters,
    sampler: type[Sampler],
    num_train: int,
    num_test: int,
    settings: ExperimentSettings | None = None,
    *,
    problem_tokens: int = PROBLEM_TOKENS,
    base_dir: Path | None = None,
) -> ExperimentEstimate:
    """Estimate all stages of a text experiment, those of a phase with its parameters.

    Parameters
    ----------
    settings
        Used here: prices, workers and limits per minute.
    problem_tokens
        The mean length of a question, a solution and their instructions.
    base_dir
        The folder that the path of a custom protocol starts from.

    Raises
    ------
    ParameterError
        If an agent is not a chat model.
    """
    from ratchet.protocols.registry import build_protocol_handler

    def table(params: HyperParameters) -> _Table:
        handler = build_protocol_handler(params, base_dir=base_dir)
        episode = _LongestEpisode(params, handler, problem_tokens)
        return _Table(params, sampler, settings or ExperimentSettings(), episode)

    overall = table(hyper_params)
    agents = tuple(overall.episode.agents)
    spans = [
        _Span(range(phase.start, phase.stop), table(phase.hyper_params), phase.learners)
        for phase in read_phases(hyper_params, agents)
    ] or [_Span(range(hyper_params.rl.num_iterations), overall, agents)]
    return ExperimentEstimate(tuple(overall.stages(num_train, num_test, spans)))


def estimate_auxiliary_calls(
    stage: str, models: Iterable[AuxiliaryModel], settings: ExperimentSettings
) -> StageEstimate | None:
    """Estimate a stage's calls to models that play no agent.

    None if it has no such calls, or their number is unknown.
    """
    estimate = None
    for each in models:
        if each.calls is None or each.most_calls is None:
            continue
        estimate = estimate or StageEstimate(stage, 0)
        prompt, completion = each.calls * PROBLEM_TOKENS, each.calls * each.max_tokens
        price = _price_of(PriceTable.load(settings.prices), each.model)
        cost = price.of_call(prompt, completion) if price else 0.0
        rounds = math.ceil(each.calls / settings.num_rollout_workers)
        estimate = replace(
            estimate,
            calls=estimate.calls + each.calls,
            prompt_tokens=estimate.prompt_tokens + prompt,
            completion_tokens=estimate.completion_tokens + completion,
            cost=estimate.cost + cost,
            most_calls=estimate.most_calls + each.most_calls,
            most_cost=estimate.most_cost + cost * each.most_calls / max(each.calls, 1),
            unpriced_models=_with_unpriced(estimate, each.model, price),
            seconds=estimate.seconds + rounds * _call_seconds(each.model),
        )
        limited = _limit_seconds(estimate, settings)
        estimate = replace(estimate, seconds=max(estimate.seconds, limited))
    return estimate


class _LongestEpisode:
    """Calls and tokens per agent of one game that reaches its last round."""

    def __init__(
        self, hyper_params: HyperParameters, handler: ProtocolHandler, problem_tokens: int
    ) -> None:
        self.agents: dict[str, TextAgentParameters] = {}
        for name in handler.agent_names:
            parameters = hyper_params.agents[name]
            if not isinstance(parameters, TextAgentParameters):
                raise ParameterError(
                    f"agents.{name}: got {type(parameters).__name__}, expected a chat model's"
                    " parameters: estimates support chat models only."
                )
            self.agents[name] = parameters
        self._problem_tokens = problem_tokens
        active = handler.can_be_active_mask.any(-1).tolist()[: handler.played_message_rounds]
        self.rounds: list[list[str]] = [
            [name for name, acts in zip(self.agents, row, strict=True) if acts] for row in active
        ]

    def calls(self, branches: int, redraws: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
        """Return (agent, calls, prompt tokens of each) round by round.

        ``branches`` replies are sampled at each step: 1 for a game, more for a tree. Each turn of
        an agent in ``redraws`` is sampled again so often, each time with all later turns.
        """
        history = continued = 0
        for round, names in enumerate(self.rounds):
            for name in names:
                context_tokens = self._problem_tokens + history
                if self.agents[name].hears_supervisor(round, hears_others=False):
                    context_tokens += SUPERVISOR_TOKENS
                agent_redraws = redraws.get(name, 0)
                yield name, branches ** (round + 1) + continued + agent_redraws, context_tokens
            continued += sum(redraws.get(name, 0) for name in names)
            history += sum(self.agents[name].max_tokens for name in names)

    @property
    def transcript_tokens(self) -> int:
        """Return the tokens of a complete game, as in a training example."""
        message_tokens = sum(
            self.agents[name].max_tokens for names in self.rounds for name in names
        )
        return self._problem_tokens + message_tokens


@dataclass(frozen=True)
class _Span:
    """Iterations with the same estimates and learners: those of a phase, or all."""

    iterations: range
    table: _Table
    learners: Collection[str]


class _Table:
    """Estimates of all stages."""

    def __init__(
        self,
        hyper_params: HyperParameters,
        sampler: type[Sampler],
        settings: ExperimentSettings,
        episode: _LongestEpisode,
    ) -> None:
        self._hyper_params = hyper_params
        self._settings = settings
        self.episode = episode
        self._prices = PriceTable.load(settings.prices)
        self._is_known = sampler.declares_sample_count()
        self._branches = sampler.responses_per_step(hyper_params)
        self._redraws = sampler.redraws_per_turn(hyper_params)
        self._examples = sampler.examples_per_rollout(hyper_params, len(episode.rounds))

    def stages(
        self, num_train: int, num_test: int, spans: Sequence[_Span]
    ) -> Iterator[StageEstimate]:
        """Return all stages in order; tests have these parameters, training those of its span."""
        tested = count_tests(self._text_rl, self._count_rollouts(num_train), num_test)
        last = spans[-1].iterations[-1] if spans[-1].iterations else -1
        for span in spans:
            for iteration in span.iterations:
                yield span.table.sampling(iteration, num_train)
                tests = {"all": True, "last": iteration == last, "none": False}
                if tests.get(self._text_rl.test_scheme, iteration in (0, last)):
                    yield self._playing("test_during_training", iteration, tested, 1, {})
                if iteration < last:
                    yield span.table.training(iteration, span, num_train)
        yield self._playing("test", -1, tested, 1, {})

    def sampling(self, iteration: int, num_train: int) -> StageEstimate:
        """Return the estimate of an iteration's rollouts."""
        games = self._count_rollouts(num_train)
        return self._playing("sample_rollouts", iteration, games, self._branches, self._redraws)

    @property
    def _text_rl(self) -> TextRlParameters:
        text_rl: TextRlParameters = self._hyper_params.text_rl
        return text_rl

    def _count_rollouts(self, num_train: int) -> int:
        requested = self._hyper_params.rl.rollouts_per_iteration
        return count_rollouts(self._text_rl, requested, num_train)

    def _playing(
        self,
        stage: str,
        iteration: int,
        games: int,
        branches: int,
        redraws: Mapping[str, int],
    ) -> StageEstimate:
        if not self._is_known:
            return StageEstimate(stage, iteration, is_known=False)
        estimate = StageEstimate(stage, iteration)
        chain_seconds = 0.0
        is_tuned = iteration > 0 or (iteration < 0 and self._hyper_params.rl.num_iterations > 1)
        for name, calls, prompt_tokens in self.episode.calls(branches, redraws):
            agent = self.episode.agents[name]
            prompt, completion = (calls * games * n for n in (prompt_tokens, agent.max_tokens))
            price = self._price(agent, is_tuned=is_tuned)
            cost = price.of_call(prompt, completion) if price else 0.0
            attempts = 1 + agent.num_invalid_generation_retries
            estimate = replace(
                estimate,
                calls=estimate.calls + calls * games,
                prompt_tokens=estimate.prompt_tokens + prompt,
                completion_tokens=estimate.completion_tokens + completion,
                cost=estimate.cost + cost,
                most_calls=estimate.most_calls + attempts * calls * games,
                most_cost=estimate.most_cost + attempts * cost,
                unpriced_models=_with_unpriced(estimate, agent, price),
            )
            chain_seconds += calls * _call_seconds(agent)
        waves = math.ceil(games / self._settings.num_rollout_workers)
        limited = _limit_seconds(estimate, self._settings)
        return replace(estimate, seconds=max(waves * chain_seconds, limited))

    def training(self, iteration: int, span: _Span, num_train: int) -> StageEstimate:
        """Return the estimate of an iteration's jobs."""
        is_all = self._text_rl.fine_tune_on_all_previous_rollouts
        earlier = iteration - span.iterations.start if is_all else 0
        games = self._count_rollouts(num_train) * (1 + earlier)
        estimate = StageEstimate("await_fine_tune_jobs", iteration, is_known=self._is_known)
        if not self._is_known:
            return estimate
        for name, agent in self.episode.agents.items():
            if name not in span.learners or agent.freeze_agent or agent.use_dummy_api:
                continue
            epochs = agent.fine_tuning.n_epochs or AUTO_EPOCHS
            examples = games * self._examples
            tokens = math.ceil(examples * self.episode.transcript_tokens) * epochs
            price = self._price(agent, is_tuned=False)
            embedded = Endpoint.of(agent).is_embedded
            cost = price.of_training(tokens) if price else 0.0
            estimate = replace(
                estimate,
                training_tokens=estimate.training_tokens + tokens,
                cost=estimate.cost + cost,
                most_cost=estimate.most_cost + cost,
                unpriced_models=_with_unpriced(estimate, agent, price),
                seconds=max(estimate.seconds, EMBEDDED_JOB_SECONDS if embedded else JOB_SECONDS),
            )
        return estimate

    def _price(self, agent: TextAgentParameters, *, is_tuned: bool) -> ModelPrice | None:
        tuned = is_tuned and not agent.freeze_agent and not agent.model_name.startswith("ft:")
        return _price_of(self._prices, agent, f"ft:{agent.model_name}:" if tuned else None)


def _price_of(prices: PriceTable, model: ServedModel, name: str | None = None) -> ModelPrice | None:
    """Return a model's price, or the fine-tuned price of its base model."""
    if model.use_dummy_api or Endpoint.of(model).is_embedded:
        return FREE
    return prices.find(name or model.model_name)


def _call_seconds(model: ServedModel) -> float:
    if model.use_dummy_api:
        return 0.0
    return EMBEDDED_CALL_SECONDS if Endpoint.of(model).is_embedded else CALL_SECONDS


def _limit_seconds(estimate: StageEstimate, settings: ExperimentSettings) -> float:
    """Return the minimal duration under the limits per minute."""
    tokens = estimate.prompt_tokens + estimate.completion_tokens
    requests_limit, tokens_limit = settings.requests_per_minute, settings.tokens_per_minute
    return 60.0 * max(
        estimate.calls / requests_limit if requests_limit else 0.0,
        tokens / tokens_limit if tokens_limit else 0.0,
    )


def _with_unpriced(
    estimate: StageEstimate, model: ServedModel, price: ModelPrice | None
) -> tuple[str, ...]:
    if price is not None:
        return estimate.unpriced_models
    return tuple(sorted({*estimate.unpriced_models, model.model_name}))
