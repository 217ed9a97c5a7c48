"""What the service asks of whatever runs the models: load, generate, unload.

The service stands on this border alone; ``torch_engine`` and ``vllm_engine`` are behind it.
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
    """A generated token, and the likeliest ones in its place, likeliest first."""

    token: str
    logprob: float
    top: tuple[TokenChoice, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptToken:
    """A token of the prompt; the first has no log-probability, since nothing comes before it."""

    token: str
    logprob: float | None = None
    top: tuple[TokenChoice, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """What has been generated since the last piece."""

    text: str
    tokens: tuple[GeneratedToken, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One completion to make.

    Its result must depend on the request alone, never on what it is batched with.

    Parameters
    ----------
    model
        Id of a loaded model.
    messages
        The prompt, at least one message; OpenAI's role ``developer`` comes as ``system``.
    prompt
        A text or token ids that are to be continued as they are, in place of messages.
    seed
        Seed of the sampling, ``0 ≤ seed < 2**63``; the service has drawn one where none was given.
    temperature
        In [0, 2]; 0 takes the likeliest token.
    top_p
        In (0, 1]: sample from the smallest set of likeliest tokens that holds this much.
    repetition_penalty
        Above 0: tokens that stand in the prompt or were generated before become unlikelier above 1
        and likelier below, by Keskar et al. 2019, "CTRL", section 4.1.
    max_tokens
        Most tokens to generate; None for what the model's context leaves. If the prompt and these
        do not fit the context together, generation ends at its end, with reason ``length``.
        0, with ``echo``, only reads the prompt.
    stop
        Texts that end the generation; the result's text ends before the first of them.
    logprobs
        Whether ``GenerationResult.tokens`` is wanted.
    top_logprobs
        How many likeliest tokens to report at each place, 0 to 20.
    token_ids
        Whether ``GenerationResult.token_ids`` and ``prompt_ids`` are wanted. Then ``tokens`` has
        one for each: all that was generated, with the end token or the stop text.
    template_variables
        What the chat template is given besides the messages, e.g. ``enable_thinking``.
    echo
        Whether ``GenerationResult.prompt`` is wanted; with log-probabilities where ``logprobs``.
    schema
        A JSON schema as text, which the answer has to fit.
    schema_param
        The parameter of the API that the schema comes from, for what is refused.
    tools
        What the model may call, as chat templates take it; refused where the template has none.
    on_piece
        Told, from within ``generate``, what has been made, piece by piece. An engine need not:
        whoever listens is told the rest at the end.
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
    on_piece: Callable[[Piece], None] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished completion.

    Parameters
    ----------
    text
        What was generated, without special tokens and without the stop text.
    finish_reason
        ``stop`` after an end token or a stop text, ``length`` at the limit.
    prompt_tokens, completion_tokens
        Counted by the model's tokenizer; an end token counts as generated.
    tokens
        The tokens of ``text``; empty unless the request wants log-probabilities.
    prompt
        The tokens of the prompt; empty unless the request wants an echo.
    token_ids, prompt_ids
        What was generated and what was read; empty unless the request wants ids.
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
    """Keep the tokens that begin within the first characters: those of a text cut at a stop."""
    kept, at = list[GeneratedToken](), 0
    for token in tokens:
        if at >= length:
            break
        kept.append(token)
        at += len(token.token)
    return kept


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """A text, or token ids, to turn into a vector."""

    model: str
    prompt: str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EmbeddingResult:
    """The mean of what the model's last layer gives for each token, scaled to length 1."""

    vector: tuple[float, ...]
    prompt_tokens: int


class RequestRefusedError(RatchetError, ValueError):
    """One request cannot be answered by its model; the others of its batch can.

    Parameters
    ----------
    message
        What is wrong with it, in words for who sent it.
    param
        Which field of the API's request is wrong.
    code
        OpenAI's word for it, e.g. ``context_length_exceeded``.
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
    """Runs models. The service calls all methods from one thread, one call at a time.

    An engine whose ``shares_base`` is True is given requests to several loaded models in one batch,
    if these are adapters to one whole model or that model itself.
    """

    @property
    def max_batch_size(self) -> int:
        """Most requests that one call of ``generate`` takes."""
        ...

    def load(self, model_id: str, folder: Path, adapters: Sequence[Path] = ()) -> None:
        """Make a model ready for ``generate``.

        Parameters
        ----------
        model_id
            The name requests will use.
        folder
            A folder in Hugging Face's layout: ``config.json``, ``model.safetensors``, tokenizer.
        adapters
            Folders of LoRA adapters in PEFT's layout, each trained on the model with those before
            it.

        Raises
        ------
        RatchetError
            If the folder holds no model that this engine can run.
        """
        ...

    def unload(self, model_id: str) -> None:
        """Free a loaded model's memory."""
        ...

    def generate(
        self, requests: Sequence[GenerationRequest]
    ) -> list[GenerationResult | RequestRefusedError]:
        """Answer a batch of requests to one loaded model; their sampling parameters may differ.

        Parameters
        ----------
        requests
            1 to ``max_batch_size`` requests that name the same model, unless it shares bases.

        Returns
        -------
        list
            One entry per request, in their order. What is wrong with one request alone (its
            prompt is longer than the context) is its entry; what fails for all is raised.
        """
        ...

    def embed(
        self, requests: Sequence[EmbeddingRequest]
    ) -> list[EmbeddingResult | RequestRefusedError]:
        """Turn texts into vectors, for a batch of requests to one loaded model.

        An engine that cannot gives refusals.
        """
        ...


@runtime_checkable
class SleepingEngine(Protocol):
    """What an engine has beside :class:`Engine` that gives its memory away while a job trains."""

    @property
    def sleeps(self) -> bool:
        """Whether it is to; otherwise it goes on answering."""
        ...

    def sleep(self) -> None:
        """Let go of the memory; nothing but ``unload`` and ``wake_up`` is called until that."""
        ...

    def wake_up(self) -> None:
        """Take the memory back; answers are as before."""
        ...
