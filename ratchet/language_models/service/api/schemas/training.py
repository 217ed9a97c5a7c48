"""Training sessions: what clients send, and what they are told."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from ratchet.language_models.local.rollout_engine import SampleRequest
from ratchet.language_models.service.api.schemas.messages import RequestModel
from ratchet.language_models.training_service.interface import OptimizerSettings, TrainingExample

_USUAL = OptimizerSettings()
_Natural = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
WeightsName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class CreateSessionRequest(RequestModel):
    """A model to train; the same intent gives the same session.

    With ``resume`` the model is one that a session has saved with its optimizer: the new session
    goes on where that one was, with its base, adapter and seed.
    """

    model: str
    lora_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    lora_alpha: Annotated[int, Field(ge=1)] | None = None
    seed: Seed = 0
    intent: Annotated[str, StringConstraints(min_length=1, max_length=255)] | None = None
    resume: bool = False


class GivenExample(RequestModel):
    """A sequence to learn from."""

    tokens: tuple[int, ...]
    loss_mask: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    advantages: tuple[float, ...] | None = None
    log_probs: tuple[float, ...] | None = None

    def to_example(self) -> TrainingExample:
        """Return it as training takes it."""
        return TrainingExample(
            self.tokens, self.loss_mask, self.weights, self.advantages, self.log_probs
        )


class Verb(RequestModel):
    """What changes a session, or is to be answered in its turn."""

    sequence: _Natural


class ForwardBackwardRequest(Verb):
    """Examples, and the loss whose gradient is gathered; without ``backward`` none is."""

    examples: Annotated[tuple[GivenExample, ...], Field(min_length=1)]
    loss: str = "cross_entropy"
    loss_config: dict[str, float] = Field(default_factory=dict)
    backward: bool = True


class GivenOptimizer(RequestModel):
    """The figures of one step."""

    learning_rate: float
    beta1: float = _USUAL.beta1
    beta2: float = _USUAL.beta2
    eps: float = _USUAL.eps
    weight_decay: float = _USUAL.weight_decay
    max_grad_norm: float = _USUAL.max_grad_norm

    def to_settings(self) -> OptimizerSettings:
        """Return them as training takes them."""
        return OptimizerSettings(**self.model_dump())


class OptimStepRequest(Verb):
    """A step along the gathered gradient."""

    optimizer: GivenOptimizer


class SaveWeightsRequest(Verb):
    """A name for the weights as they are; with ``optimizer`` a session can go on from them."""

    name: WeightsName
    optimizer: bool = False


class RefusedRequest(Verb):
    """A numbered request that could not be read; it uses up its number and changes nothing."""

    message: str


class GivenPrompt(RequestModel):
    """A prompt to go on from."""

    prompt: Annotated[tuple[int, ...], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)]
    seed: Seed
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    stop_ids: tuple[int, ...] = ()

    def to_request(self) -> SampleRequest:
        """Return it as sampling takes it."""
        return SampleRequest(
            self.prompt, self.max_tokens, self.seed, self.temperature, self.top_p, self.stop_ids
        )


class SampleBody(RequestModel):
    """Prompts, and the saved model that goes on from them; the session's weights where None."""

    requests: Annotated[tuple[GivenPrompt, ...], Field(min_length=1)]
    model: str | None = None


class SessionObject(BaseModel):
    """A session; ``next_sequence`` is the number that it expects."""

    id: str
    object: Literal["training.session"] = "training.session"
    created_at: int
    model: str
    lora_rank: int
    lora_alpha: int | None
    seed: int
    intent: str | None
    next_sequence: int
    steps: int


class SessionList(BaseModel):
    """All sessions."""

    object: Literal["list"] = "list"
    data: list[SessionObject]


class PassAnswer(BaseModel):
    """What a pass over examples has given."""

    sequence: int
    metrics: dict[str, float]
    log_probs: list[list[float]]


class StepAnswer(BaseModel):
    """What a step has given."""

    sequence: int
    metrics: dict[str, float]


class SavedAnswer(BaseModel):
    """The id of the model that has the weights."""

    sequence: int
    model: str


class SampledCompletion(BaseModel):
    """What was sampled."""

    tokens: list[int]
    log_probs: list[float]
    finish_reason: Literal["stop", "length"]


class SampleAnswer(BaseModel):
    """Completions, in the order of their prompts."""

    completions: list[SampledCompletion]


class SessionDeleted(BaseModel):
    """A session is gone; the models that it saved stay."""

    id: str
    object: Literal["training.session"] = "training.session"
    deleted: Literal[True] = True


class TokenizerObject(BaseModel):
    """The texts of a model's tokenizer and configuration, by the names of their files."""

    object: Literal["training.tokenizer"] = "training.tokenizer"
    model: str
    files: dict[str, str]
