"""A training session at Ratchet's service, over HTTP.

Operations are numbered, so that a request whose response was lost, truncated or late is sent again:
the service executes it once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from types import TracebackType
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter

from ratchet.language_models.local.rollout_engine import Completion, SampleRequest
from ratchet.language_models.retrying import RetryPolicy
from ratchet.language_models.training_service.interface import (
    ForwardBackward,
    OptimizerSettings,
    TrainingExample,
)
from ratchet.language_models.training_service.sync_client import SyncClient

_SESSIONS = "training/sessions"
_FIELDS = tuple(field.name for field in fields(TrainingExample))
_METRICS = TypeAdapter(dict[str, float])
_LOG_PROBS = TypeAdapter(tuple[tuple[float, ...], ...])
_COMPLETIONS = TypeAdapter(list[Completion])
_TEXT = TypeAdapter(str)
_NUMBER = TypeAdapter(int)


def connect(
    url: str,
    *,
    model: str,
    lora_rank: int = 0,
    lora_alpha: int | None = None,
    seed: int = 0,
    intent: str | None = None,
    resume: bool = False,
    api_key_name: str | None = None,
    timeout_seconds: float = 600.0,
    policy: RetryPolicy | None = None,
) -> HttpTrainingService:
    """Open a session, or reopen that of an intent.

    Parameters
    ----------
    url
        The service's, with or without ``/v1``, or ``"embedded"`` for the one that Ratchet starts.
    model
        The model to train: a base model, or one created by a job or session.
    lora_rank, lora_alpha
        Size of the trained adapter; rank 0 trains all weights.
    intent
        An identifier of the session, such as a run's key: equal intents open the same session.
        Without it, a lost response may leave an unused session.
    resume
        The model was saved with its optimizer; continue from there.
    api_key_name
        The environment variable that contains the key.

    Raises
    ------
    LanguageModelError
        If the service refuses, or fails too often.
    """
    client = SyncClient(url, api_key_name, timeout_seconds=timeout_seconds, policy=policy)
    asked = {
        "model": model,
        "lora_rank": lora_rank,
        "lora_alpha": lora_alpha,
        "seed": seed,
        "intent": intent,
        "resume": resume,
    }
    try:
        return open_session(client, asked)
    except BaseException:
        client.close()
        raise


def open_session(client: SyncClient, asked: Mapping[str, object]) -> HttpTrainingService:
    """Open a session through a client; ``asked`` as the arguments of :func:`connect`."""
    return HttpTrainingService(
        client, str(client.request("POST", _SESSIONS, asked, id=_TEXT)["id"])
    )


class HttpTrainingService:
    """An open session; a context manager, not thread-safe."""

    def __init__(self, client: SyncClient, session_id: str) -> None:
        self._client = client
        self._session_id = session_id

    @property
    def session_id(self) -> str:
        """The session's id at the service."""
        return self._session_id

    def next_sequence(self) -> int:
        """Return the next sequence number that the session expects."""
        path = f"{_SESSIONS}/{quote(self._session_id)}"
        return int(self._client.request("GET", path, next_sequence=_NUMBER)["next_sequence"])

    def forward_backward(
        self,
        examples: Sequence[TrainingExample],
        *,
        loss: str,
        loss_config: Mapping[str, float],
        sequence: int,
    ) -> ForwardBackward:
        """Accumulate the gradient of a loss; see :class:`TrainingService`."""
        return self._pass(examples, loss, loss_config, sequence, backward=True)

    def forward(self, examples: Sequence[TrainingExample], *, sequence: int) -> ForwardBackward:
        """Return log-probabilities; see :class:`TrainingService`."""
        return self._pass(examples, "cross_entropy", {}, sequence, backward=False)

    def optim_step(self, optimizer: OptimizerSettings, *, sequence: int) -> dict[str, float]:
        """Apply the accumulated gradient; see :class:`TrainingService`."""
        body = {"sequence": sequence, "optimizer": asdict(optimizer)}
        metrics: dict[str, float] = self._verb("optim_step", body, metrics=_METRICS)["metrics"]
        return metrics

    def sample(
        self, requests: Sequence[SampleRequest], *, model: str | None = None
    ) -> list[Completion]:
        """Sample; see :class:`TrainingService`."""
        body = {"requests": [asdict(request) for request in requests], "model": model}
        found: list[Completion]
        found = self._verb("sample", body, completions=_COMPLETIONS)["completions"]
        return found

    def save_weights(self, *, sequence: int, name: str, optimizer: bool = False) -> str:
        """Save the weights as a model; see :class:`TrainingService`."""
        body = {"sequence": sequence, "name": name, "optimizer": optimizer}
        return str(self._verb("save_weights", body, model=_TEXT)["model"])

    def delete(self) -> None:
        """Delete the session at the service; the models that it saved remain."""
        self._client.request("DELETE", f"{_SESSIONS}/{quote(self._session_id)}")

    def close(self) -> None:
        """Close the connections; the session remains."""
        self._client.close()

    def __enter__(self) -> HttpTrainingService:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _pass(
        self,
        examples: Sequence[TrainingExample],
        loss: str,
        config: Mapping[str, float],
        sequence: int,
        *,
        backward: bool,
    ) -> ForwardBackward:
        given = [
            {name: value for name in _FIELDS if (value := getattr(example, name)) is not None}
            for example in examples
        ]
        body = {
            "sequence": sequence,
            "examples": given,
            "loss": loss,
            "loss_config": dict(config),
            "backward": backward,
        }
        answer = self._verb("forward_backward", body, metrics=_METRICS, log_probs=_LOG_PROBS)
        return ForwardBackward(answer["metrics"], answer["log_probs"])

    def _verb(
        self,
        verb: str,
        body: Mapping[str, Any],
        **fields: TypeAdapter[Any],
    ) -> dict[str, Any]:
        return self._client.request(
            "POST", f"{_SESSIONS}/{quote(self._session_id)}/{verb}", body, **fields
        )
