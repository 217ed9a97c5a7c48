"""Chat-model agent: maps a view to an action by calls of its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from ratchet.errors import LanguageModelError, ParameterError
from ratchet.language_models.chat import ChatClient, shared_chat_client
from ratchet.language_models.dummy import dummy_completion
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.ledger import UNBILLED
from ratchet.language_models.pricing import FREE, ModelPrice, PriceTable
from ratchet.language_models.types import ChatMessage, ChatRequest, Completion
from ratchet.protocols.decision_scales import DECISION_SCALES
from ratchet.rollouts.tokens import ReplyTokens
from ratchet.scenarios.pure_text.parsing import (
    NO_DECISION,
    ParsedCompletion,
    parse_completion,
)
from ratchet.scenarios.pure_text.views import build_prompt, supervisor_message
from ratchet.seeding import service_seed

if TYPE_CHECKING:
    from ratchet.language_models.journal import CallJournal
    from ratchet.language_models.usage import UsageMeter
    from ratchet.parameters.chat_agents import TextAgentParameters
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.protocols.handler import ProtocolHandler
    from ratchet.scenarios.pure_text.views import AgentView


class SystemPromptSource(Protocol):
    """Source of agents' system prompts."""

    def render(self, view: AgentView, /) -> str:
        """Write the system prompt of an agent that sees ``view``."""


class SharedModel(Protocol):
    """The model of several agents; :class:`PureTextSharedModelGroup` implements it."""

    @property
    def current_model_name(self) -> str:
        """The model that currently plays."""

    @property
    def called_as(self) -> str:
        """The name in requests: the model's, or its deployment's."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """Context shared by a rollout's calls.

    ``call_prefix`` names the rollout (``"r12"``, in a tree also the node) within ``journal``;
    ``seed`` is that of the stage and iteration, from which each call's seed is derived with its id.
    Tokens and log-probabilities of ``token_agents`` are always requested, regardless of their
    parameters.
    """

    journal: CallJournal | None
    usage: UsageMeter | None
    call_prefix: str
    seed: int
    token_agents: frozenset[str] = frozenset()

    def call_id(self, round: int, agent: str, attempt: int) -> str:
        """Name one call, e.g. ``"r12/t3/verifier/a0"``."""
        return f"{self.call_prefix}/t{round}/{agent}/a{attempt}"

    def call_seed(self, call_id: str, attempt: int) -> int:
        """Return the seed that is sent with a call, 31 bits."""
        return service_seed(self.seed, "call", attempt, call_id)


@dataclass(frozen=True, slots=True)
class AgentOutput:
    """An agent's actions at a step.

    Attributes
    ----------
    messages
        Channel → text.
    raw_message
        The reply as generated, without its thinking; empty if no reply could be parsed.
    decision
        0 reject, 1 accept, 2 none.
    confidence
        Confidence of the decision, above 0 and at most 1.
    retry_count
        The number of discarded invalid replies.
    token_limit
        Whether the reply was truncated at its token limit.
    valid
        Whether a reply could be parsed.
    prompt_tokens, completion_tokens
        The sums over all of the step's calls.
    thinking
        The model's text before its reply, which no other agent sees.
    invalid_reason
        Why the last reply is invalid; empty if it is valid.
    tokens
        Tokens of the last reply, if requested by the agent's parameters and returned by the
        service.
    """

    messages: Mapping[str, str]
    raw_message: str
    prompt: tuple[ChatMessage, ...] = ()
    decision: int = NO_DECISION
    retry_count: int = 0
    token_limit: bool = False
    valid: bool = True
    prompt_tokens: int = 0
    completion_tokens: int = 0
    thinking: str = ""
    invalid_reason: str = ""
    confidence: float = 1.0
    tokens: ReplyTokens | None = None


class PureTextWholeAgent:
    """One agent of a text scenario."""

    def __init__(
        self,
        hyper_params: HyperParameters,
        settings: ExperimentSettings,
        agent_name: str,
        handler: ProtocolHandler,
        system_prompts: SystemPromptSource,
    ) -> None:
        self.agent_name = agent_name
        self.agent_index = handler.agent_index(agent_name)
        self.parameters = _text_parameters(hyper_params, agent_name)
        self.spec = handler.text_agent_spec(agent_name)
        self.scale = DECISION_SCALES[handler.common.verifier_decision_scale]
        self.shared_model_group: SharedModel | None = None
        self._settings = settings
        self._system_prompts = system_prompts

    def __repr__(self) -> str:
        return f"PureTextWholeAgent({self.agent_name!r}, model_name={self.model_name!r})"

    @property
    def model_name(self) -> str:
        """The current model: that of its group, if it is in one."""
        if self.shared_model_group is None:
            return self.parameters.model_name
        return self.shared_model_group.current_model_name

    @property
    def called_as(self) -> str:
        """The name in requests: the model, or its deployment."""
        group = self.shared_model_group
        return self.parameters.model_name if group is None else group.called_as

    async def act(self, view: AgentView, context: CallContext) -> AgentOutput:
        """Return the actions for a view, retrying while replies are invalid.

        After the last retry: an empty message, no decision, ``valid`` False. Raises
        LanguageModelError, with datapoint, agent and round, if a call failed after all retries.
        """
        prompt = self._prompt(view)
        model, price = self.model_name, self._price
        prompt_tokens = completion_tokens = 0
        retries = self.parameters.num_invalid_generation_retries
        for attempt in range(retries + 1):
            completion = await self._complete(view, prompt, attempt, context)
            prompt_tokens += completion.prompt_tokens
            completion_tokens += completion.completion_tokens
            if context.usage is not None:
                context.usage.record_call(self.agent_name, model, completion, price)
            parsed = parse_completion(completion.text, view.headers, view.may_decide, self.scale)
            if parsed.valid:
                break
        return AgentOutput(
            messages=parsed.messages if parsed.valid else dict.fromkeys(view.headers, ""),
            raw_message=completion.text if parsed.valid else "",
            prompt=prompt,
            decision=parsed.decision if parsed.valid else NO_DECISION,
            retry_count=attempt if parsed.valid else retries,
            token_limit=completion.finish_reason == "length",
            valid=parsed.valid,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            thinking=completion.thinking,
            invalid_reason=_why_invalid(completion, parsed),
            confidence=parsed.confidence,
            tokens=completion.tokens,
        )

    def _prompt(self, view: AgentView) -> tuple[ChatMessage, ...]:
        prompt = build_prompt(view, self.spec, self._system_prompts.render(view))
        hears_others = any(message.role == "user" for message in prompt)
        if self.parameters.hears_supervisor(view.round, hears_others=hears_others):
            prompt.append(supervisor_message(view, self.scale))
        return tuple(prompt)

    async def _complete(
        self,
        view: AgentView,
        prompt: tuple[ChatMessage, ...],
        attempt: int,
        context: CallContext,
    ) -> Completion:
        call_id = context.call_id(view.round, self.agent_name, attempt)
        learns_tokens = self.agent_name in context.token_agents
        request = self._request(prompt, context.call_seed(call_id, attempt), learns_tokens)
        usage = context.usage
        bill = UNBILLED if usage is None else usage.bill(self._price, request, call_id)

        async def ask() -> Completion:
            if not self.parameters.use_dummy_api:
                return await self._client.complete(request, bill)
            async with bill.attempt() as billed:
                completion = dummy_completion(
                    request,
                    view.headers,
                    may_decide=view.may_decide,
                    must_decide=view.may_decide and view.is_last_round,
                    decisions=tuple(self.scale.degrees),
                )
                billed.answered(completion.prompt_tokens, completion.completion_tokens)
            return completion

        try:
            if context.journal is None:
                return await ask()
            return await context.journal.call(call_id, request, ask)
        except LanguageModelError as error:
            where = (
                f"datapoint {view.datapoint_id}, agent {self.agent_name!r}, round {view.round}"
                f" (call {call_id})"
            )
            raise type(error)(f"{where}: {error}") from None

    def _request(
        self, prompt: tuple[ChatMessage, ...], seed: int, learns_tokens: bool
    ) -> ChatRequest:
        parameters = self.parameters
        return ChatRequest(
            self.called_as,
            prompt,
            temperature=parameters.temperature,
            top_p=parameters.top_p,
            max_tokens=parameters.max_tokens,
            seed=seed,
            reasoning_effort=parameters.reasoning_effort,
            chat_template_kwargs=parameters.chat_template_kwargs,
            extra_body=parameters.extra_body,
            repetition_penalty=parameters.repetition_penalty,
            logprobs=parameters.logprobs or learns_tokens,
            return_token_ids=parameters.return_token_ids or learns_tokens,
        )

    @cached_property
    def endpoint(self) -> Endpoint:
        """The service it speaks to."""
        return Endpoint.of(self.parameters, self._settings.request_seconds)

    @cached_property
    def _client(self) -> ChatClient:
        return shared_chat_client(
            self.endpoint,
            self._settings.requests_per_minute,
            self._settings.tokens_per_minute,
        )

    @property
    def _price(self) -> ModelPrice | None:
        free = self.parameters.use_dummy_api or self.endpoint.is_embedded
        if free:
            return FREE
        return self._prices.find(self.model_name, tuned_from=self.parameters.model_name)

    @cached_property
    def _prices(self) -> PriceTable:
        return PriceTable.load(self._settings.prices)


def _why_invalid(completion: Completion, parsed: ParsedCompletion) -> str:
    if parsed.valid or completion.text or not completion.thinking:
        return parsed.reason
    if completion.finish_reason == "length":
        return "cut off while it was thinking: raise max_tokens_per_message, or have it think less"
    return "ended while it was thinking, without an answer"


def _text_parameters(hyper_params: HyperParameters, agent_name: str) -> TextAgentParameters:
    from ratchet.parameters.chat_agents import TextAgentParameters

    parameters = hyper_params.agents[agent_name]
    if not isinstance(parameters, TextAgentParameters):
        raise ParameterError(
            f"agents.{agent_name}: got {type(parameters).__name__} of the scenario"
            f" {hyper_params.scenario!r}, expected TextAgentParameters of a text scenario."
        )
    return parameters
