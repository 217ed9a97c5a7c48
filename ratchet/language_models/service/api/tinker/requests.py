"""Requests of the wire as verbs of a training session."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ratchet.errors import DataError
from ratchet.language_models.service.api.schemas.training import (
    ForwardBackwardRequest,
    GivenExample,
    GivenOptimizer,
    GivenPrompt,
)
from ratchet.language_models.service.api.tinker.messages import numbers_of, tokens_of
from ratchet.seeding import derive_seed


class WireModel(BaseModel):
    """A request; fields that later versions of the client add are passed over."""

    model_config = ConfigDict(protected_namespaces=())


class LoraConfig(WireModel):
    """The adapter that is trained."""

    rank: int = Field(ge=1, le=1024)
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True


class CreateSession(WireModel):
    """A client that begins."""

    user_metadata: dict[str, object] | None = None


class CreateModel(WireModel):
    """A model to train."""

    session_id: str
    model_seq_id: int
    base_model: str
    lora_config: LoraConfig | None = None
    optimizer_config: dict[str, Any] = {"type": "adamw"}


class AdamParams(WireModel):
    """The figures of a step."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0

    def to_optimizer(self) -> GivenOptimizer:
        """Return them by our names."""
        given = self.model_dump(exclude={"grad_clip_norm"})
        return GivenOptimizer(max_grad_norm=max(0.0, self.grad_clip_norm), **given)


class OptimStep(WireModel):
    """A step."""

    model_id: str
    seq_id: int = Field(ge=1)
    adam_params: AdamParams


class Numbered(WireModel):
    """The fields that every request with a place in a model's sequence has."""

    model_id: str
    seq_id: int = Field(ge=1)


class SaveWeights(WireModel):
    """A name for the weights; without one they are only to be sampled from."""

    model_id: str
    seq_id: int = Field(ge=1)
    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: Literal["snapshot"] = "snapshot"
    ttl_seconds: None = None


class LoadWeights(WireModel):
    """A model to train that starts from saved weights, with their optimizer or a new one."""

    session_id: str
    model_seq_id: int
    path: str
    optimizer: bool


class OfModel(WireModel):
    """Something about a model."""

    model_id: str


class CreateSamplingSession(WireModel):
    """Weights to sample from."""

    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None


class SamplingParams(WireModel):
    """How to sample."""

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
    """A prompt to go on from, several times."""

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
        """What ends an answer in place of the model's end tokens; None for these.

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

    def to_prompts(self, context_left: int) -> list[GivenPrompt]:
        """Return one prompt for each sample, with a seed of its own."""
        params = self.sampling_params
        seed, purpose = params.seed, ""
        if seed is None:
            seed, purpose = self.seq_id, self.sampling_session_id
        return [
            GivenPrompt(
                prompt=tuple(self.tokens),
                max_tokens=params.max_tokens or context_left,
                seed=derive_seed(seed, "sample", number, purpose),
                temperature=params.temperature,
                top_p=params.top_p,
            )
            for number in range(self.num_samples)
        ]


class RetrieveFuture(WireModel):
    """What was asked for before."""

    request_id: str


def to_pass(message: Any) -> ForwardBackwardRequest:  # noqa: ANN401 -- a generated class
    """Turn a ``ForwardBackwardRequest`` into a verb.

    Raises
    ------
    DataError
        If its targets are not the tokens that follow, or a vector has not one value for each.
    """
    return ForwardBackwardRequest(
        sequence=message.seq_id - 1,
        examples=tuple(_to_example(datum) for datum in message.data),
        loss=message.loss_fn,
        loss_config={named.key: named.value for named in message.loss_fn_config},
        backward=not message.forward_only,
    )


def _to_example(datum: Any) -> GivenExample:  # noqa: ANN401
    read, targets = tokens_of(datum), numbers_of(datum, "target_tokens")
    if targets is None or len(targets) != len(read):
        count = "none" if targets is None else len(targets)
        raise DataError(
            f"target_tokens: got {count}, expected {len(read)}, one for each token of model_input."
        )
    for place, (target, follows) in enumerate(zip(targets, read[1:], strict=False)):
        if target != follows:
            raise DataError(
                f"target_tokens[{place}]: got {target:.0f}, expected {follows}, the token of"
                " model_input that follows. Give a token that is not to be learned the weight 0."
            )
    tokens = (*read, int(targets[-1]))

    def shifted(name: str) -> tuple[float, ...] | None:
        values = numbers_of(datum, name)
        return None if values is None else (0.0, *map(float, values))

    mask = (0, *[1] * len(read))
    factors, masked = shifted("weights"), shifted("mask")
    weights = masked if factors is None else factors
    return GivenExample(
        tokens=tokens,
        loss_mask=mask,
        weights=weights,
        advantages=shifted("advantages"),
        log_probs=shifted("logprobs"),
    )
