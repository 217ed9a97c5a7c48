"""Interface between the service and the engines: load, generate, unload.

The service depends on this interface only; ``torch_engine`` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from ratchet.errors import RatchetError
from ratchet.language_models.types import ChatMessage

if TYPE_CHECKING:
    from pydantic import JsonValue

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """A token and its log-probability under the model (temperature 1, before top-p)."""

    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """A generated token, and the most likely tokens at its position, in order."""

    token: str
    logprob: float
    top: tuple[TokenChoice, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A token of the prompt; the first has no log-probability, as it has no predecessor."""

    token: str
    logprob: float | None = None
    top: tuple[TokenChoice, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationChunk:
    """The text and tokens generated since the last chunk."""

    text: str
    tokens: tuple[GeneratedToken, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One completion to generate.

    Its result must depend only on the request, not on its batch.

    Parameters
    ----------
    model
        Id of a loaded model.
    messages
        The prompt, at least one message; OpenAI's role ``developer`` is passed as ``system``.
    prompt
        A text or token ids to complete without a template, instead of messages.
    seed
        Seed of the sampling, ``0 ≤ seed < 2**63``; sampled by the service if not given.
    temperature
        In [0, 2]; 0 is greedy.
    top_p
        In (0, 1]: sample from the smallest set of most likely tokens with this total probability.
    repetition_penalty
        Above 0: tokens of the prompt or the completion become less likely above 1 and more likely
        below, by Keskar et al. 2019, "CTRL", section 4.1.
    max_tokens
        Maximal number of generated tokens; None for the rest of the model's context. If prompt and
        completion do not fit the context together, generation ends with reason ``length``. 0, with
        ``echo``, only reads the prompt.
    stop
        Texts that end the generation; the result's text ends before the first of them.
    logprobs
        Whether ``GenerationResult.tokens`` is requested.
    top_logprobs
        Number of most likely tokens to report at each position, 0 to 20.
    token_ids
        Whether ``GenerationResult.token_ids`` and ``prompt_ids`` are requested. Then ``tokens`` has
        one entry for each generated token, including the end token or the stop text.
    template_variables
        Variables of the chat template in addition to the messages, e.g. ``enable_thinking``.
    echo
        Whether ``GenerationResult.prompt`` is requested; with log-probabilities if ``logprobs``.
    schema
        A JSON schema, as text, that the completion must fit.
    schema_param
        The schema's API parameter, for error messages.
    tools
        Tools in the format of chat templates; refused if the template has none.
    on_piece
        Called within ``generate`` with each generated chunk. Optional for engines: the rest is
        passed on at the end.
    """

    model: str
    messages: tuple[ChatMessage, ...]
    seed: int
    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    top_logprobs: int = 0
    template_variables: Mapping[str, JsonValue] = field(default_factory=dict)
    prompt: str | tuple[int, ...] | None = None
    echo: bool = False
    token_ids: bool = False
    schema: str | None = None
    schema_param: str = "response_format"
    tools: tuple[Mapping[str, JsonValue], ...] = ()
    on_piece: Callable[[GenerationChunk], None] | None = field(
        default=None, compare=False, repr=False
    )


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished completion.

    Parameters
    ----------
    text
        The generated text, without special tokens and without the stop text.
    finish_reason
        ``stop`` after an end token or a stop text, ``length`` at the limit.
    prompt_tokens, completion_tokens
        Counted by the model's tokenizer; an end token counts as generated.
    tokens
        The tokens of ``text``; empty unless log-probabilities are requested.
    prompt
        The tokens of the prompt; empty unless an echo is requested.
    token_ids, prompt_ids
        Generated and read ids; empty unless ids are requested.
    """

    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    tokens: tuple[GeneratedToken, ...] = ()
    prompt: tuple[PromptToken, ...] = ()
    token_ids: tuple[int, ...] = ()
    prompt_ids: tuple[int, ...] = ()


def tokens_within(tokens: Sequence[GeneratedToken], length: int) -> list[GeneratedToken]:
    """Return the tokens that start within the first characters of a text cut at a stop."""
    selected, at = list[GeneratedToken](), 0
    for token in tokens:
        if at >= length:
            break
        selected.append(token)
        at += len(token.token)
    return selected


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A text, or token ids, to embed."""

    model: str
    prompt: str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EmbeddingResult:
    """The mean of the last hidden states over all tokens, scaled to length 1."""

    vector: tuple[float, ...]
    prompt_tokens: int


class RequestRefusedError(RatchetError, ValueError):
    """One request is refused by its model; the others of its batch are not affected.

    Parameters
    ----------
    message
        The reason, for the client.
    param
        The API field at fault.
    code
        OpenAI's error code, e.g. ``context_length_exceeded``.
    """

    def __init__(self, message: str, *, param: str, code: str) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class EngineError(RatchetError, RuntimeError):
    """The engine did not complete a request; ``code`` is that of the API's error."""

    code = "engine_failed"


class EngineStoppedError(EngineError):
    """The service is stopping."""

    code = "stopping"


class QueueFullError(EngineError):
    """Too many requests are waiting; a later one may be accepted."""

    code = "queue_full"


class ModelUnavailableError(EngineError):
    """The model was deleted while the request waited."""

    code = "model_not_found"


class Engine(Protocol):
    """Runs models. The service calls all methods from one thread, one call at a time."""

    @property
    def max_batch_size(self) -> int:
        """Maximal number of requests in one call of ``generate``."""
        ...

    def load(self, model_id: str, folder: Path, adapters: Sequence[Path] = ()) -> None:
        """Prepare a model for ``generate``.

        Raises RatchetError if the engine cannot run the folder's model.

        Parameters
        ----------
        model_id
            The model's name in requests.
        folder
            A folder in Hugging Face's layout: ``config.json``, ``model.safetensors``, tokenizer.
        adapters
            Folders of LoRA adapters in PEFT's layout, each trained on the model with the previous
            ones.
        """
        ...

    def unload(self, model_id: str) -> None:
        """Free a loaded model's memory."""
        ...

    def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[GenerationResult | RequestRefusedError]:
        """Complete a batch of requests to one loaded model; their sampling parameters may differ.

        Parameters
        ----------
        requests
            1 to ``max_batch_size`` requests to the same model.

        Returns
        -------
        list
            One entry per request, in order. An error of one request (e.g. a prompt longer than the
            context) is its entry; an error of the batch is raised.
        """
        ...

    def embed(
        self, requests: Sequence[EmbeddingRequest]
    ) -> list[EmbeddingResult | RequestRefusedError]:
        """Embed texts, for a batch of requests to one loaded model.

        An engine without embeddings returns refusals.
        """
        ...


class QueuedRequest(Protocol):
    """A request that waits for its result."""

    @property
    def request(self) -> GenerationRequest:
        """The completion to generate."""
        ...

    @property
    def is_cancelled(self) -> bool:
        """Whether its client has gone, so that its result is not needed."""
        ...

    def deliver(self, result: GenerationResult | RequestRefusedError) -> None:
        """Return its result to the client."""
        ...


@runtime_checkable
class ContinuousEngine(Protocol):
    """An engine whose batches new requests can join; optional for engines."""

    def generate_continuously(
        self, model_id: str, take: Callable[[int], Sequence[QueuedRequest]]
    ) -> None:
        """Complete requests to a loaded model until none of them runs and none waits.

        Each result is delivered when its completion ends. The service calls this method instead of
        ``generate``. If it raises an error, requests without a result fail with it.

        Parameters
        ----------
        take
            Returns up to this number of waiting requests, in order; none if no request may start
            now. The first call returns at least one.
        """
        ...
