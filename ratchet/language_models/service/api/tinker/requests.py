"""Requests of the wire, converted to operations of a training session."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ratchet.errors import DataError
from ratchet.language_models.service.api.schemas.training import (
    ExampleBody,
    ForwardBackwardRequest,
    OptimizerBody,
    PromptBody,
)
from ratchet.language_models.service.api.tinker.messages import numbers_of, tokens_of
from ratchet.seeding import derive_seed


class WireModel(BaseModel):
    """A request; fields of later client versions are ignored."""

    model_config = ConfigDict(protected_namespaces=())


class LoraConfig(WireModel):
    """The adapter to train."""

    rank: int = Field(ge=1, le=1024)
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True


class CreateSession(WireModel):
    """A new client session."""

    user_metadata: dict[str, object] | None = None


class CreateModel(WireModel):
    """A model to train."""

    session_id: str
    model_seq_id: int
    base_model: str
    lora_config: LoraConfig | None = None
    optimizer_config: dict[str, Any] = {"type": "adamw"}


class AdamParams(WireModel):
    """Optimizer settings of a step."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0

    def to_optimizer(self) -> OptimizerBody:
        """Return them under Ratchet's names."""
        given = self.model_dump(exclude={"grad_clip_norm"})
        return OptimizerBody(max_grad_norm=max(0.0, self.grad_clip_norm), **given)


class OptimStep(WireModel):
    """A step."""

    model_id: str
    seq_id: int = Field(ge=1)
    adam_params: AdamParams


class Numbered(WireModel):
    """Fields of every request in a model's sequence."""

    model_id: str
    seq_id: int = Field(ge=1)


class SaveWeights(WireModel):
    """A name for the weights; unnamed weights are for sampling only."""

    model_id: str
    seq_id: int = Field(ge=1)
    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: Literal["snapshot"] = "snapshot"
    ttl_seconds: None = None


class LoadWeights(WireModel):
    """A model to train from saved weights, with their optimizer or a new one."""

    session_id: str
    model_seq_id: int
    path: str
    optimizer: bool


class ModelScopedRequest(WireModel):
    """A request about a model."""

    model_id: str


class CreateSamplingSession(WireModel):
    """Weights to sample from."""

    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None


class SamplingParams(WireModel):
    """Sampling parameters."""

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: float = 1.0
    top_k: Literal[-1] = -1
    top_p: float = 1.0


class EncodedText(WireModel):
    """Token ids of a prompt."""

    tokens: list[int]
    type: Literal["encoded_text"] = "encoded_text"


class ModelInput(WireModel):
    """A prompt."""

    chunks: list[EncodedText]


class Sample(WireModel):
    """A prompt to complete several times."""

    num_samples: int = Field(default=1, ge=1, le=4096)
    prompt: ModelInput
    sampling_params: SamplingParams
    sampling_session_id: str
    seq_id: int = 0
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: Literal[0] = 0
    topk_sample_logprobs: Literal[0] = 0
    target_prompt_logprobs: None = None
    prompt_alt_tokens_k: Literal[0] = 0
    prompt_logprobs_last_n: None = None

    @property
    def tokens(self) -> list[int]:
        """The prompt's ids."""
        return [token for chunk in self.prompt.chunks for token in chunk.tokens]

    @property
    def end_ids(self) -> tuple[int, ...] | None:
        """Token ids that replace the model's end tokens; None for the model's.

        Raises
        ------
        DataError
            If it is text.
        """
        stop = self.sampling_params.stop
        if stop is None:
            return None
        if isinstance(stop, str) or not all(isinstance(end, int) for end in stop):
            raise DataError("stop: got text, expected token ids.")
        return tuple(int(end) for end in stop)

    def to_prompts(self, context_left: int) -> list[PromptBody]:
        """Return one prompt for each sample, each with its own seed."""
        params = self.sampling_params
        seed, purpose = params.seed, ""
        if seed is None:
            seed, purpose = self.seq_id, self.sampling_session_id
        return [
            PromptBody(
                prompt=tuple(self.tokens),
                max_tokens=params.max_tokens or context_left,
                seed=derive_seed(seed, "sample", number, purpose),
                temperature=params.temperature,
                top_p=params.top_p,
            )
            for number in range(self.num_samples)
        ]


class RetrieveFuture(WireModel):
    """The id of an earlier request."""

    request_id: str


def to_pass(message: Any) -> ForwardBackwardRequest:  # noqa: ANN401 -- a generated class
    """Convert a ``ForwardBackwardRequest`` to an operation.

    Raises
    ------
    DataError
        If its targets are not the next tokens, or a vector has the wrong length.
    """
    return ForwardBackwardRequest(
        sequence=message.seq_id - 1,
        examples=tuple(_to_example(datum) for datum in message.data),
        loss=message.loss_fn,
        loss_config={named.key: named.value for named in message.loss_fn_config},
        backward=not message.forward_only,
    )


def _to_example(datum: Any) -> ExampleBody:  # noqa: ANN401
    read, targets = tokens_of(datum), numbers_of(datum, "target_tokens")
    if targets is None or len(targets) != len(read):
        count = "none" if targets is None else len(targets)
        raise DataError(
            f"target_tokens: got {count}, expected {len(read)}, one for each token of model_input."
        )
    for position, (target, follows) in enumerate(zip(targets, read[1:], strict=False)):
        if target != follows:
            raise DataError(
                f"target_tokens[{position}]: got {target:.0f}, expected {follows}, the token of"
                " model_input that follows. Set the weight of a token to 0 to exclude it."
            )
    tokens = (*read, int(targets[-1]))

    def shifted(name: str) -> tuple[float, ...] | None:
        values = numbers_of(datum, name)
        return None if values is None else (0.0, *map(float, values))

    mask = (0, *[1] * len(read))
    factors, masked = shifted("weights"), shifted("mask")
    weights = masked if factors is None else factors
    return ExampleBody(
        tokens=tokens,
        loss_mask=mask,
        weights=weights,
        advantages=shifted("advantages"),
        log_probs=shifted("logprobs"),
    )
