"""Requests of the wire, converted to operations of a training session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

from ratchet.errors import DataError
from ratchet.seeding import derive_seed
from ratchet.service.api.schemas.messages import RequestModel
from ratchet.service.api.schemas.unsupported import NoEffect
from ratchet.service.training_sessions.operations import (
    MODEL_STOPS,
    CheckpointBody,
    CheckpointKind,
    ExampleBody,
    ForwardBackwardRequest,
    LoadWeightsRequest,
    OptimizerBody,
    PromptBody,
    SaveWeightsRequest,
    Seed,
    Stops,
)

_FACTORS = ("loss_mask", "weights", "mask", "advantages")
"""Vectors in which 0 excludes a token."""


class WireModel(BaseModel):
    """A request; fields of later client versions are ignored."""

    model_config = ConfigDict(protected_namespaces=())


class LoraConfig(WireModel):
    """The adapter to train."""

    rank: int = Field(ge=1, le=1024)
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True


class SessionOptions(RequestModel):
    """Ratchet's own options of a trained model, in its metadata under ``ratchet``.

    Equal intents are the same model. With options, a model's id is that of its session, which any
    client can reopen.
    """

    intent: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    seed: Seed = 0
    lora_alpha: Annotated[int, Field(ge=1)] | None = None


class UserMetadata(WireModel):
    """Metadata of a trained model: Ratchet's options, and the client's values."""

    model_config = ConfigDict(extra="allow")

    ratchet: SessionOptions | None = None


class NewModel(WireModel):
    """Fields of requests that create a trained model."""

    session_id: str
    model_seq_id: int
    user_metadata: UserMetadata | None = None

    @property
    def model_id(self) -> str:
        """The model's id for clients that set no options."""
        return f"{self.session_id}:train:{self.model_seq_id}"

    @property
    def options(self) -> SessionOptions | None:
        """Ratchet's options; None for other clients."""
        return None if self.user_metadata is None else self.user_metadata.ratchet

    @property
    def metadata(self) -> dict[str, str] | None:
        """The client's values."""
        values = None if self.user_metadata is None else self.user_metadata.model_extra
        return {name: str(value) for name, value in values.items()} if values else None


def is_run(model_id: str) -> bool:
    """Return whether a trained model is that of a client that sets none of Ratchet's options."""
    return ":train:" in model_id


class CreateSession(WireModel):
    """A new client session."""

    user_metadata: dict[str, object] | None = None


class CreateModel(NewModel):
    """A model to train."""

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
        settings = self.model_dump(exclude={"grad_clip_norm"})
        return OptimizerBody(max_grad_norm=max(0.0, self.grad_clip_norm), **settings)


class Numbered(WireModel):
    """Fields of every request in a model's sequence."""

    model_id: str
    seq_id: int = Field(ge=1)


class OptimStep(Numbered):
    """A step."""

    adam_params: AdamParams


class SaveWeights(Numbered):
    """A name for the weights; unnamed weights are for sampling only."""

    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: Literal["snapshot"] = "snapshot"
    ttl_seconds: int | None = Field(default=None, ge=1)
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None
    age_encryption_recipients: Annotated[
        JsonValue, NoEffect(([],), "Omit it: files are not encrypted.")
    ] = None

    def to_operation(self, kind: CheckpointKind) -> SaveWeightsRequest:
        """Convert it to an operation of a session.

        Unnamed weights have no path, nor those of clients that set Ratchet's options, which use
        the model's id.
        """
        checkpoint = None
        if self.path is not None and is_run(self.model_id):
            checkpoint = CheckpointBody(
                run=self.model_id,
                kind=kind,
                ttl_seconds=self.ttl_seconds,
                overwrite=self.overwrite,
                metadata=self.user_metadata,
            )
        return SaveWeightsRequest(
            sequence=self.seq_id - 1,
            name=self.path or "sampler",
            optimizer=kind == "weights",
            checkpoint=checkpoint,
        )


class ModelFromWeights(NewModel):
    """A model to train from saved weights, with their optimizer or a new one."""

    path: str
    optimizer: bool


class LoadInto(Numbered):
    """Saved weights, with their optimizer or a new one, that replace those of a model."""

    path: str
    optimizer: bool

    def to_operation(self) -> LoadWeightsRequest:
        """Convert it to an operation of a session."""
        return LoadWeightsRequest(
            sequence=self.seq_id - 1, path=self.path, optimizer=self.optimizer
        )


class ModelScopedRequest(WireModel):
    """A request about a model."""

    model_id: str


class UnloadModel(ModelScopedRequest):
    """A model that a client has finished; with ``delete``, its session is deleted."""

    delete: bool = False


class CreateSamplingSession(WireModel):
    """Weights to sample from; ``model_id``: the current ones of a trained model."""

    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None
    model_id: str | None = None


class SamplingParams(WireModel):
    """Sampling parameters."""

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: float = 1.0
    top_k: Annotated[JsonValue, NoEffect((-1,), "Use top_p, or omit it.")] = -1
    top_p: float = 1.0


class EncodedText(WireModel):
    """Token ids of a prompt."""

    tokens: list[int]
    type: Literal["encoded_text"] = "encoded_text"


class ModelInput(WireModel):
    """A prompt, or an example without its last token."""

    chunks: list[EncodedText]

    @property
    def tokens(self) -> list[int]:
        """All ids."""
        return [token for chunk in self.chunks for token in chunk.tokens]


class Sample(WireModel):
    """A prompt to complete several times.

    ``requests``, Ratchet's own, replace it: prompts with their own seeds, completed together.
    """

    num_samples: int = Field(default=1, ge=1, le=4096)
    prompt: ModelInput = ModelInput(chunks=[])
    sampling_params: SamplingParams = SamplingParams()
    requests: Annotated[tuple[PromptBody, ...], Field(min_length=1)] | None = None
    sampling_session_id: str
    seq_id: int = 0
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: Annotated[JsonValue, NoEffect((0,))] = 0
    topk_sample_logprobs: Annotated[JsonValue, NoEffect((0,))] = 0
    target_prompt_logprobs: Annotated[JsonValue, NoEffect()] = None
    prompt_alt_tokens_k: Annotated[JsonValue, NoEffect((0,))] = 0
    prompt_logprobs_last_n: Annotated[JsonValue, NoEffect()] = None

    @property
    def stops(self) -> Stops:
        """Token ids that replace the model's end tokens, or texts that end it in addition."""
        stop = self.sampling_params.stop
        if stop is None:
            return MODEL_STOPS
        if isinstance(stop, str):
            return Stops(texts=(stop,))
        texts = tuple(end for end in stop if isinstance(end, str) and end)
        if texts:
            return Stops(texts=texts)
        return Stops(end_ids=tuple(end for end in stop if isinstance(end, int)))

    def to_prompts(self, context_left: int) -> Sequence[PromptBody]:
        """Return one prompt for each sample, each with its own seed."""
        if self.requests is not None:
            return self.requests
        params = self.sampling_params
        seed, purpose = params.seed, ""
        if seed is None:
            seed, purpose = self.seq_id, self.sampling_session_id
        return [
            PromptBody(
                prompt=tuple(self.prompt.tokens),
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


class TensorData(WireModel):
    """A dense vector."""

    data: list[float]


class Datum(WireModel):
    """An example: its tokens but the last, and vectors with a value for each token but the first.

    In addition to those of Tinker, there may be a ``loss_mask``, 1 for each token to train on; by
    default all are.
    """

    model_input: ModelInput
    loss_fn_inputs: dict[str, TensorData]

    def to_example(self) -> ExampleBody:
        """Convert it to an example of a session."""
        read, targets = self.model_input.tokens, self._shifted("target_tokens")[1:]
        if not targets or len(targets) != len(read):
            raise DataError(
                f"target_tokens: got {len(targets) or 'none'}, expected {len(read) or 'some'}, one"
                " for each token of model_input."
            )
        for name in (*_FACTORS, "logprobs"):
            vector = self.loss_fn_inputs.get(name)
            if vector is not None and len(vector.data) != len(read):
                raise DataError(
                    f"{name}: got {len(vector.data)} values, expected {len(read)}, one for each"
                    " token of model_input."
                )
        return ExampleBody(
            tokens=(*read, int(targets[-1])),
            loss_mask=(0, *self._mask(read[1:], targets)),
            weights=self._shifted("weights") or self._shifted("mask") or None,
            advantages=self._shifted("advantages") or None,
            log_probs=self._shifted("logprobs") or None,
        )

    def _mask(self, following: Sequence[int], targets: Sequence[float]) -> list[int]:
        """Return 1 for each target to read; padding, whose factor is 0, is none."""
        masks = self._shifted("loss_mask")[1:] or [1] * len(targets)
        factors = [self._shifted(name)[1:] for name in _FACTORS]
        mask = [int(number) for number in masks]
        for position, (target, follows) in enumerate(zip(targets, following, strict=False)):
            if target == follows:
                continue
            if not any(factor and factor[position] == 0 for factor in factors):
                raise DataError(
                    f"target_tokens[{position}]: got {target:.0f}, expected {follows}, the token of"
                    " model_input that follows. To exclude a token, set its weight to 0, or its"
                    " advantage for losses with advantages."
                )
            mask[position] = 0
        return mask

    def _shifted(self, name: str) -> tuple[float, ...]:
        """Return a vector, with 0 for the first token; empty if it is missing."""
        vector = self.loss_fn_inputs.get(name)
        return () if vector is None else (0.0, *vector.data)


class ForwardBackwardInput(WireModel):
    """Examples and their loss."""

    data: list[Datum]
    loss_fn: str
    loss_fn_config: dict[str, float] | None = None


class ForwardBackward(Numbered):
    """A pass over examples, without gradients if ``forward_only``."""

    forward_backward_input: ForwardBackwardInput
    forward_only: bool = False

    def to_operation(self) -> ForwardBackwardRequest:
        """Convert it to an operation of a session; raises DataError as the examples do."""
        pass_input = self.forward_backward_input
        return ForwardBackwardRequest(
            sequence=self.seq_id - 1,
            examples=tuple(datum.to_example() for datum in pass_input.data),
            loss=pass_input.loss_fn,
            loss_config=pass_input.loss_fn_config or {},
            backward=not self.forward_only,
        )
