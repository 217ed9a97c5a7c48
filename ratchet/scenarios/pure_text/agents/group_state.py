"""Which model a group of agents plays with, and the job that makes the next: a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from ratchet.language_models.fine_tune_jobs import FineTuneIntent

NoJobReason: TypeAlias = Literal["insufficient_data", "frozen"]


@dataclass(frozen=True)
class TokenTraining:
    """What a group that learns from tokens goes on from.

    Attributes
    ----------
    reward_averages
        Each agent's running mean reward, where advantages are measured from it.
    session
        The training session that has saved ``model``, with its optimizer.
    lora_rank
        Of the adapter that it trained; 0 for all weights.
    """

    reward_averages: Mapping[str, float] = field(default_factory=dict)
    session: str | None = None
    model: str | None = None
    lora_rank: int = 0


@dataclass(frozen=True)
class PureTextSharedModelGroupState:
    """What a shared model group continues from.

    Attributes
    ----------
    model_names
        All models so far, the first and the current one included.
    fine_tune_job_id
        The job that makes the next model, or the training session that has, if there is one.
    fine_tune_intent
        What that job is meant to do; a session has none.
    no_job_reason
        Why there is none, if one was asked for.
    called_as
        What requests for completions name, where that is not the model: its deployment.
    token_training
        Of groups that learn from tokens.
    """

    current_model_name: str
    model_names: tuple[str, ...]
    fine_tune_job_id: str | None = None
    fine_tune_intent: FineTuneIntent | None = None
    no_job_reason: NoJobReason | None = None
    called_as: str | None = None
    token_training: TokenTraining | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""
        intent = self.fine_tune_intent
        called = {} if self.called_as is None else {"called_as": self.called_as}
        learned = self.token_training
        return {
            **called,
            **({} if learned is None else {"token_training": asdict(learned)}),
            "current_model_name": self.current_model_name,
            "model_names": list(self.model_names),
            "fine_tune_job_id": self.fine_tune_job_id,
            "fine_tune_intent": intent.to_dict() if intent else None,
            "no_job_reason": self.no_job_reason,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PureTextSharedModelGroupState:
        """Make the state of plain data; the inverse of :meth:`to_dict`."""
        intent, learned = data["fine_tune_intent"], data.get("token_training")
        return cls(
            current_model_name=data["current_model_name"],
            model_names=tuple(data["model_names"]),
            fine_tune_job_id=data["fine_tune_job_id"],
            fine_tune_intent=FineTuneIntent.from_dict(intent) if intent else None,
            no_job_reason=data["no_job_reason"],
            called_as=data.get("called_as"),
            token_training=None if learned is None else TokenTraining(**learned),
        )
