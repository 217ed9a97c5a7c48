"""Recorded operations of training sessions, and descriptions of sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.training_service.interface import OptimizerSettings, TrainingExample
from ratchet.service.api.schemas.messages import RequestModel

_USUAL = OptimizerSettings()
_Natural = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
CheckpointKind = Literal["weights", "sampler_weights", "external_weights"]
WeightsName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


@dataclass(frozen=True, slots=True)
class Stops:
    """Conditions that end a completion, in addition to its length.

    Parameters
    ----------
    end_ids
        Tokens instead of the model's end tokens; None for the model's.
    texts
        Texts, in addition; a completion includes the token that completes one.
    """

    end_ids: tuple[int, ...] | None = None
    texts: tuple[str, ...] = ()


MODEL_STOPS = Stops()


class CreateSessionRequest(RequestModel):
    """A model to train; equal intents give the same session.

    With ``resume``, the model was saved by a session with its optimizer: the new session continues
    from there, with its base model, adapter and seed; with ``new_optimizer`` only its weights are
    loaded.
    """

    model: str
    lora_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    lora_alpha: Annotated[int, Field(ge=1)] | None = None
    seed: Seed = 0
    intent: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    resume: bool = False
    new_optimizer: bool = False
    metadata: dict[str, str] | None = None


class ExampleBody(RequestModel):
    """A training sequence."""

    tokens: tuple[int, ...]
    loss_mask: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    advantages: tuple[float, ...] | None = None
    log_probs: tuple[float, ...] | None = None

    def to_example(self) -> TrainingExample:
        """Return it in the trainer's format."""
        return TrainingExample(
            self.tokens, self.loss_mask, self.weights, self.advantages, self.log_probs
        )


class SessionOperation(RequestModel):
    """An operation that changes a session, or must be executed in order."""

    sequence: _Natural

    def content(self) -> str:
        """Return everything but its number as JSON; repeated requests have equal contents."""
        return self.model_dump_json(exclude={"sequence"})


class ForwardBackwardRequest(SessionOperation):
    """Examples, and the loss whose gradient is accumulated, unless ``backward`` is false."""

    examples: Annotated[tuple[ExampleBody, ...], Field(min_length=1)]
    loss: str = "cross_entropy"
    loss_config: dict[str, float] = Field(default_factory=dict)
    backward: bool = True


class OptimizerBody(RequestModel):
    """Optimizer settings of one step."""

    learning_rate: float
    beta1: float = _USUAL.beta1
    beta2: float = _USUAL.beta2
    eps: float = _USUAL.eps
    weight_decay: float = _USUAL.weight_decay
    max_grad_norm: float = _USUAL.max_grad_norm

    def to_settings(self) -> OptimizerSettings:
        """Return them in the trainer's format."""
        return OptimizerSettings(**self.model_dump())


class OptimStepRequest(SessionOperation):
    """A step along the accumulated gradient."""

    optimizer: OptimizerBody


class CheckpointBody(RequestModel):
    """A path of saved weights, ``run/kind/name``, in the form of the ``tinker`` client.

    Parameters
    ----------
    ttl_seconds
        Seconds until the weights expire; None for never.
    overwrite
        Whether the path may name other weights already.
    """

    run: str
    kind: CheckpointKind
    ttl_seconds: Annotated[int, Field(ge=1)] | None = None
    overwrite: bool = False
    metadata: dict[str, str] | None = None


class SaveWeightsRequest(SessionOperation):
    """A name for the current weights; with ``optimizer`` a session can resume from them."""

    name: WeightsName
    optimizer: bool = False
    checkpoint: CheckpointBody | None = None

    def content(self) -> str:
        """Return the JSON; without a checkpoint that of earlier versions, whose records remain."""
        return self.model_dump_json(
            exclude={"sequence"} if self.checkpoint else {"sequence", "checkpoint"}
        )


class LoadWeightsRequest(SessionOperation):
    """Saved weights that replace the current ones; with ``optimizer`` with their moments."""

    path: str
    optimizer: bool = False


class RefusedRequest(SessionOperation):
    """A numbered request that could not be parsed; it uses its number and changes no state."""

    message: str


class PromptBody(RequestModel):
    """A prompt to complete."""

    prompt: Annotated[tuple[int, ...], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)]
    seed: Seed
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    stop_ids: tuple[int, ...] = ()

    def to_request(self) -> SampleRequest:
        """Return it in the sampler's format."""
        return SampleRequest(
            self.prompt, self.max_tokens, self.seed, self.temperature, self.top_p, self.stop_ids
        )


class SessionObject(BaseModel):
    """A session; ``next_sequence`` is the number that it expects."""

    id: str
    created_at: int
    model: str
    lora_rank: int
    lora_alpha: int | None
    seed: int
    intent: str | None
    next_sequence: int
    steps: int
    used_at: int
    metadata: dict[str, str] | None
