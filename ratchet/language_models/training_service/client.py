"""A session at Ratchet's own service, over HTTP.

Each verb has its number, so that a request that was lost, cut or answered late is simply sent
again: the service does it once.
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
from ratchet.language_models.training_service.link import Link

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
    """Open a session, or find that of an intent again.

    Parameters
    ----------
    url
        The service's, with or without ``/v1``, or ``"embedded"`` for the one that Ratchet starts.
    model
        What is trained: a base model, or one that a job or a session has made.
    lora_rank, lora_alpha
        Of the adapter that is trained; rank 0 trains all weights.
    intent
        Whatever names the session, such as a run's key: asked for again it is the same session.
        Without one a lost answer may leave a session that nobody uses.
    resume
        The model was saved with its optimizer; go on where its session was.
    api_key_name
        The environment variable that holds the key.

    Raises
    ------
    LanguageModelError
        If the service refuses, or fails too often.
    """
    link = Link(url, api_key_name, timeout_seconds=timeout_seconds, policy=policy)
    asked = {
        "model": model,
        "lora_rank": lora_rank,
        "lora_alpha": lora_alpha,
        "seed": seed,
        "intent": intent,
        "resume": resume,
    }
    try:
        return open_session(link, asked)
    except BaseException:
        link.close()
        raise


def open_session(link: Link, asked: Mapping[str, object]) -> HttpTrainingService:
    """Open a session where there is a link already; ``asked`` as :func:`connect` is."""
    return HttpTrainingService(link, str(link.ask("POST", _SESSIONS, asked, id=_TEXT)["id"]))


class HttpTrainingService:
    """A session that is open; a context manager. Not to be shared by threads."""

    def __init__(self, link: Link, session_id: str) -> None:
        self._link = link
        self._session_id = session_id

    @property
    def session_id(self) -> str:
        """The session's id at the service."""
        return self._session_id

    def next_sequence(self) -> int:
        """Return the number that the session expects next."""
        path = f"{_SESSIONS}/{quote(self._session_id)}"
        return int(self._link.ask("GET", path, next_sequence=_NUMBER)["next_sequence"])

    def forward_backward(
        self,
        examples: Sequence[TrainingExample],
        *,
        loss: str,
        loss_config: Mapping[str, float],
        sequence: int,
    ) -> ForwardBackward:
        """Gather the gradient of a loss; see :class:`TrainingService`."""
        return self._pass(examples, loss, loss_config, sequence, backward=True)

    def forward(self, examples: Sequence[TrainingExample], *, sequence: int) -> ForwardBackward:
        """Return log-probabilities; see :class:`TrainingService`."""
        return self._pass(examples, "cross_entropy", {}, sequence, backward=False)

    def optim_step(self, optimizer: OptimizerSettings, *, sequence: int) -> dict[str, float]:
        """Follow the gathered gradient; see :class:`TrainingService`."""
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
        """Keep the weights as a model; see :class:`TrainingService`."""
        body = {"sequence": sequence, "name": name, "optimizer": optimizer}
        return str(self._verb("save_weights", body, model=_TEXT)["model"])

    def delete(self) -> None:
        """Delete the session at the service; the models that it saved stay."""
        self._link.ask("DELETE", f"{_SESSIONS}/{quote(self._session_id)}")

    def close(self) -> None:
        """Let go of connections; the session stays."""
        self._link.close()

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
        return self._link.ask(
            "POST", f"{_SESSIONS}/{quote(self._session_id)}/{verb}", body, **fields
        )
