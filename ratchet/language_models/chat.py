"""Chat client: one completion per request, with retries."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from ratchet.errors import ContentFilterError, UnexpectedFinishError
from ratchet.language_models.connection import Connection
from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.ledger import UNBILLED, Attempt, Bill
from ratchet.language_models.rate_limits import RateLimiter
from ratchet.language_models.reasoning import ReasoningAndAnswer, split_reasoning
from ratchet.language_models.retrying import RetryPolicy, TransientError, with_retries
from ratchet.language_models.types import ChatRequest, Completion
from ratchet.rollouts.tokens import ReplyTokens

_GOOD_FINISHES = ("stop", "length")
_THINKING_FIELDS = ("reasoning_content", "reasoning")
_LETTERS_PER_TOKEN = 4
_DEFAULT_COMPLETION_TOKENS = 256


class ChatClient:
    """Calls the chat models of one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        policy: RetryPolicy | None = None,
        limiter: RateLimiter | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._limiter = limiter or RateLimiter()
        self._policy = policy or RetryPolicy()
        self._connection = Connection(endpoint)

    def __repr__(self) -> str:
        return f"ChatClient({self.endpoint!r})"

    async def complete(self, request: ChatRequest, bill: Bill = UNBILLED) -> Completion:
        """Request a completion, and record each attempt in the bill.

        Raises
        ------
        ContentFilterError
            If the service withheld it.
        UnexpectedFinishError
            If it ended for any reason but its end or its token limit.
        BudgetExceededError
            If an attempt would exceed the budget.
        LanguageModelError
            If the service refused, or failed too often.
        MissingKeyError
            If the environment has no API key for the service.
        """
        body = request.to_body()
        if "max_tokens" in body and self.endpoint.base_url is None:
            body["max_completion_tokens"] = body.pop("max_tokens")
        tokens = _estimate_tokens(request) if self._limiter.counts_tokens else 0

        async def attempt() -> Completion:
            grant = await self._limiter.acquire(tokens)
            async with bill.attempt() as billed:
                content = await self._connection.post_chat(body, billed)
                completion = self._read(content, billed, body)
            used = completion.prompt_tokens + completion.completion_tokens
            self._limiter.settle(grant, used or tokens)
            return completion

        return await with_retries(attempt, self._policy, f"{request.model} at {self._label}")

    @property
    def _label(self) -> str:
        return self.endpoint.label

    def _read(self, content: bytes, billed: Attempt, request_body: Mapping[str, Any]) -> Completion:
        try:
            data = json.loads(content)
            choice = data["choices"][0]
            message = choice["message"]
            finish = choice["finish_reason"]
            usage = data.get("usage") or {}
            thinking, text = _read_message(message)
            completion = Completion(
                text=text,
                finish_reason=finish,
                prompt_tokens=int(usage.get("prompt_tokens") or 0),
                completion_tokens=int(usage.get("completion_tokens") or 0),
                model=str(data.get("model") or ""),
                thinking=thinking,
                tokens=_read_tokens(request_body, data, choice),
            )
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise TransientError(
                f"{self._label}: the response is not a completion"
                f" ({self._connection.redact(repr(content[:200]))}; {type(error).__name__})"
            ) from None
        billed.answered(completion.prompt_tokens, completion.completion_tokens)
        if finish == "content_filter" or (not completion.text and message.get("refusal")):
            raise ContentFilterError(
                f"{self._label}: the completion was withheld because of its content."
            )
        if finish not in _GOOD_FINISHES:
            raise UnexpectedFinishError(
                f"{self._label}: got finish_reason {finish!r}, expected one of"
                f" {list(_GOOD_FINISHES)}."
            )
        return completion


def _read_message(message: Mapping[str, Any]) -> ReasoningAndAnswer:
    """Split a message into reasoning and answer; services return reasoning in a field or inline."""
    reasoning_texts = [message.get(name) for name in _THINKING_FIELDS]
    apart = next((text for text in reasoning_texts if isinstance(text, str) and text), "").strip()
    thinking, answer = split_reasoning(message.get("content") or "")
    return ReasoningAndAnswer("\n\n".join(filter(None, (apart, thinking))), answer)


def _read_tokens(
    request_body: Mapping[str, Any], answer: Mapping[str, Any], choice: Mapping[str, Any]
) -> ReplyTokens | None:
    """Read tokens where requested: OpenAI's ``logprobs``, and token ids as vLLM returns them."""
    log_probs = token_ids = prompt = None
    if request_body.get("logprobs"):
        described = (choice.get("logprobs") or {}).get("content")
        if described is not None:
            log_probs = tuple(float(token["logprob"]) for token in described)
    if request_body.get("return_token_ids"):
        token_ids, prompt = choice.get("token_ids"), answer.get("prompt_token_ids")
    if log_probs is None and token_ids is None:
        return None
    ids, read = (None if got is None else tuple(map(int, got)) for got in (token_ids, prompt))
    return ReplyTokens(log_probs, ids, read)


_CLIENTS: dict[tuple[Endpoint, int | None, int | None], ChatClient] = {}
_CLIENTS_LOCK = threading.Lock()


def shared_chat_client(
    endpoint: Endpoint, requests_per_minute: int | None = None, tokens_per_minute: int | None = None
) -> ChatClient:
    """Return this process's client of an endpoint; all users share its limits."""
    key = (endpoint, requests_per_minute, tokens_per_minute)
    with _CLIENTS_LOCK:
        if key not in _CLIENTS:
            limiter = RateLimiter(requests_per_minute, tokens_per_minute)
            _CLIENTS[key] = ChatClient(endpoint, limiter=limiter)
        return _CLIENTS[key]


def _estimate_tokens(request: ChatRequest) -> int:
    """Estimate a request's tokens until the service reports them."""
    letters = sum(len(message.content) for message in request.messages)
    return letters // _LETTERS_PER_TOKEN + (request.max_tokens or _DEFAULT_COMPLETION_TOKENS)
