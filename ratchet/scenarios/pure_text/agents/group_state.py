"""State of a shared model group: its models and its fine-tuning job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from ratchet.language_models.fine_tune_jobs import FineTuneIntent

NoJobReason: TypeAlias = Literal["insufficient_data", "frozen"]


@dataclass(frozen=True)
class TokenTraining:
    """State of a group that learns from tokens.

    Attributes
    ----------
    reward_averages
        Each agent's running mean reward, if advantages use it as a baseline.
    session
        The training session that saved ``model``, with its optimizer.
    lora_rank
        The rank of its adapter; 0 for all weights.
    """

    reward_averages: Mapping[str, float] = field(default_factory=dict)
    session: str | None = None
    model: str | None = None
    lora_rank: int = 0


@dataclass(frozen=True)
class PureTextSharedModelGroupState:
    """State of a shared model group.

    Attributes
    ----------
    model_names
        All models so far, including the first and the current one.
    fine_tune_job_id
        The job that trains the next model, or the training session that trained it, if any.
    fine_tune_intent
        The purpose of that job; None for a session.
    no_job_reason
        The reason why a requested job was not created.
    called_as
        The name in requests for completions, if it differs from the model: its deployment.
    token_training
        The state of groups that learn from tokens.
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
        """Create the state from plain data; the inverse of :meth:`to_dict`."""
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
